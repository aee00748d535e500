"""Files that let a system start a node by itself: systemd, launchd, and Windows' task scheduler.

Pure: words come in, a file's text comes out.
"""

import plistlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final
from xml.sax.saxutils import escape

STOP_S: Final = 30
"""The drain's 10 s, and what a busy machine takes to end a process."""
AGAIN_S: Final = 15


class ServiceKind(StrEnum):
    """Who starts the node."""

    SYSTEMD = "systemd"
    LAUNCHD = "launchd"
    WINDOWS = "windows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A node to be started: its name in the system, its command, and its environment."""

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    log_path: str


def unit_path(kind: ServiceKind, name: str, home: Path) -> Path:
    """Where the system looks for a user's own services; `home` is the user's."""
    match kind:
        case ServiceKind.SYSTEMD:
            return home / ".config" / "systemd" / "user" / f"{name}.service"
        case ServiceKind.LAUNCHD:
            return home / "Library" / "LaunchAgents" / f"{name}.plist"
        case ServiceKind.WINDOWS:
            return home / f"{name}.xml"


def service_text(kind: ServiceKind, service: Service) -> str:
    """The file's content."""
    match kind:
        case ServiceKind.SYSTEMD:
            return _systemd(service)
        case ServiceKind.LAUNCHD:
            return _launchd(service)
        case ServiceKind.WINDOWS:
            return _windows(service)


def start_commands(kind: ServiceKind, name: str, path: Path) -> tuple[tuple[str, ...], ...]:
    """What makes the system start it now and from now on."""
    match kind:
        case ServiceKind.SYSTEMD:
            return (
                ("systemctl", "--user", "daemon-reload"),
                ("systemctl", "--user", "enable", "--now", f"{name}.service"),
            )
        case ServiceKind.LAUNCHD:
            return (("launchctl", "load", "-w", str(path)),)
        case ServiceKind.WINDOWS:
            return (
                ("schtasks", "/create", "/tn", name, "/xml", str(path), "/f"),
                ("schtasks", "/run", "/tn", name),
            )


def stop_commands(kind: ServiceKind, name: str, path: Path) -> tuple[tuple[str, ...], ...]:
    """What stops it in order, and keeps the system from starting it."""
    match kind:
        case ServiceKind.SYSTEMD:
            return (("systemctl", "--user", "disable", "--now", f"{name}.service"),)
        case ServiceKind.LAUNCHD:
            return (("launchctl", "unload", "-w", str(path)),)
        case ServiceKind.WINDOWS:
            return (
                ("schtasks", "/end", "/tn", name),
                ("schtasks", "/delete", "/tn", name, "/f"),
            )


def _systemd(service: Service) -> str:
    environment = "\n".join(
        f"Environment={_quoted(f'{key}={value}')}" for key, value in service.environment.items()
    )
    return f"""# Written by `plait node install`; `plait node uninstall` removes it.
[Unit]
Description=plait node: lends this machine to a network
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={" ".join(_quoted(word) for word in service.words)}
{environment}
Restart=on-failure
RestartSec={AGAIN_S}
# Options that cannot be read stay so.
RestartPreventExitStatus=2
KillMode=mixed
TimeoutStopSec={STOP_S}
Nice=10
NoNewPrivileges=true

[Install]
WantedBy=default.target
"""


def _quoted(word: str) -> str:
    """As systemd reads words: no specifier, no variable, one word."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"'


def _launchd(service: Service) -> str:
    content = {
        "Label": service.name,
        "ProgramArguments": list(service.words),
        "EnvironmentVariables": dict(service.environment),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": AGAIN_S,
        "ExitTimeOut": STOP_S,
        "ProcessType": "Background",
        "Nice": 10,
        "StandardOutPath": str(PurePosixPath(service.log_path)),
        "StandardErrorPath": str(PurePosixPath(service.log_path)),
    }
    return plistlib.dumps(content, sort_keys=False).decode()


def _windows(service: Service) -> str:
    """A task at log-on. Its environment travels through cmd, which sets it."""
    sets = " && ".join(f'set "{key}={value}"' for key, value in service.environment.items())
    command = " ".join(f'"{word}"' for word in service.words)
    log = PureWindowsPath(service.log_path)
    line = f'/d /s /c "{sets + " && " if sets else ""}{command} >> "{log}" 2>&1"'
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<Task version="1.4" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>plait node: lends this machine to a network</Description>
  </RegistrationInfo>
  <Triggers>
    <LogonTrigger>
      <Enabled>true</Enabled>
    </LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <Priority>8</Priority>
    <RestartOnFailure>
      <Interval>PT1M</Interval>
      <Count>999</Count>
    </RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>cmd.exe</Command>
      <Arguments>{escape(line)}</Arguments>
    </Exec>
  </Actions>
</Task>
"""
