"""Service files: each system reads its own, and finds the words that were given."""

import plistlib
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from plait.cli.node_service import Service, ServiceKind, service_text, unit_path

SERVICE = Service(
    name="plait-node",
    words=["/usr/bin/env", "python3", "--name", 'the "attic" 100%', "--set", "a=$HOME\\x"],
    environment={"PLAIT_HOME": "/home/a b/plait", "ODD": "50% & <more>"},
    log_path="/home/a b/node.log",
)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_reads_the_unit_and_the_words_arrive(tmp_path: Path) -> None:
    path = tmp_path / "plait-node.service"
    path.write_text(service_text(ServiceKind.SYSTEMD, SERVICE))
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "plait-node.service" not in ended.stderr, ended.stderr


def test_no_specifier_or_variable_of_systemd_is_left_in_words() -> None:
    text = service_text(ServiceKind.SYSTEMD, SERVICE)
    assert '"the \\"attic\\" 100%%"' in text
    assert '"a=$$HOME\\\\x"' in text
    assert 'Environment="ODD=50%% & <more>"' in text


def test_launchd_reads_the_agent() -> None:
    agent = plistlib.loads(service_text(ServiceKind.LAUNCHD, SERVICE).encode())
    assert agent["ProgramArguments"] == list(SERVICE.words)
    assert agent["EnvironmentVariables"] == dict(SERVICE.environment)
    assert agent["RunAtLoad"] is True and agent["KeepAlive"] == {"SuccessfulExit": False}


def test_the_task_scheduler_reads_the_task() -> None:
    root = ET.fromstring(service_text(ServiceKind.WINDOWS, SERVICE))
    space = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}
    line = root.findtext("t:Actions/t:Exec/t:Arguments", namespaces=space)
    assert line is not None and 'set "PLAIT_HOME=/home/a b/plait"' in line
    assert root.findtext("t:Settings/t:ExecutionTimeLimit", namespaces=space) == "PT0S"


def test_each_file_lies_where_its_system_looks() -> None:
    home = Path("/h")
    paths = [str(unit_path(kind, "n", home)) for kind in ServiceKind]
    assert paths == [
        "/h/.config/systemd/user/n.service",
        "/h/Library/LaunchAgents/n.plist",
        "/h/n.xml",
    ]
