"""The machine itself, read by psutil, NVIDIA's library, logind and X. Whatever of them is missing
leaves its readings empty."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from node.owner.hardware import FILE_VARIABLE, FileHardware, Hardware, HardwareReading
from node.owner.limits import PauseWhen
from node.owner.nvidia import NvidiaGpu

CALL_S: Final = 0.4
_MIB: Final = 1 << 20


def open_hardware(home: Path, gpu_index: int | None, rules: PauseWhen) -> Hardware:
    """The machine, or the file that stands in for it, by its name in the node's folder or by its
    whole path. `gpu_index` None: no GPU is used. What no rule asks for is not looked at."""
    path = os.environ.get(FILE_VARIABLE)
    if path:
        return FileHardware(home / path)
    return Machine(
        gpu_index, wants_user=rules.user_active_min is not None, wants_screen=rules.fullscreen
    )


class Machine:
    """A `node.owner.hardware.Hardware`. What a command has to be asked for is asked once a second,
    and where somebody wants to know: when the machine was used, what fills its screen.
    """

    def __init__(
        self,
        gpu_index: int | None = 0,
        *,
        wants_user: bool = True,
        wants_screen: bool = True,
        unix_s: Callable[[], float] = lambda: time.time_ns() / 1e9,
        ask: Callable[..., str] | None = None,
    ) -> None:
        """`ask` runs a command and returns what it prints."""
        self._gpu = NvidiaGpu(gpu_index) if gpu_index is not None else None
        self._wants_user, self._wants_screen = wants_user, wants_screen
        self._unix_s = unix_s
        self._ask = ask or _ask
        self._asked_s = 0.0
        self._idle_s: float | None = None
        self._is_fullscreen: bool | None = None

    def read(self) -> HardwareReading:
        now_s = self._unix_s()
        if now_s - self._asked_s >= 1.0 or now_s < self._asked_s:
            self._asked_s = now_s
            if self._wants_user:
                session_s = _session_idle_s(now_s, self._ask)
                self._idle_s = _least(_terminal_idle_s(now_s), session_s)
            if self._wants_screen:
                self._is_fullscreen = _is_fullscreen(self._ask)
        gpu = self._gpu.read() if self._gpu is not None else None
        return HardwareReading(
            other_gpu_process_mb=gpu.others_bytes / _MIB if gpu is not None else None,
            is_on_battery=_is_on_battery(),
            user_idle_s=self._idle_s,
            is_fullscreen=self._is_fullscreen,
            gpu_temp_c=gpu.temp_c if gpu is not None else None,
            power_w=gpu.power_w if gpu is not None else None,
            vram_total_mb=gpu.total_bytes / _MIB if gpu is not None else None,
            vram_free_mb=gpu.free_bytes / _MIB if gpu is not None else None,
        )

    def set_power_limit(self, limit_w: float) -> str:
        if self._gpu is None:
            return "no GPU is used"
        return self._gpu.set_power_limit(limit_w)


def _is_on_battery() -> bool | None:
    with contextlib.suppress(OSError, AttributeError, NotImplementedError):
        battery = psutil.sensors_battery()
        if battery is not None and battery.power_plugged is not None:
            return not battery.power_plugged
    return None


def _terminal_idle_s(now_s: float) -> float | None:
    """Since the last key in any terminal that somebody is logged in on."""
    idle: float | None = None
    with contextlib.suppress(OSError, psutil.Error):
        for user in psutil.users():
            with contextlib.suppress(OSError):
                touched_s = os.stat(f"/dev/{user.terminal}").st_atime
                idle = _least(idle, max(0.0, now_s - touched_s))
    return idle


def _session_idle_s(now_s: float, ask: Callable[..., str]) -> float | None:
    """What logind says of sessions with a seat: 0 while one of them is not idle."""
    answer = ask("loginctl", "show-seat", "seat0", "--property=IdleHint,IdleSinceHint")
    words = dict(line.partition("=")[::2] for line in answer.splitlines())
    if words.get("IdleHint") == "no":
        return 0.0
    since_us = words.get("IdleSinceHint", "")
    if words.get("IdleHint") == "yes" and since_us.isdecimal():
        return max(0.0, now_s - int(since_us) / 1e6)
    return None


def _is_fullscreen(ask: Callable[..., str]) -> bool | None:
    if not os.environ.get("DISPLAY"):
        return None
    front = ask("xprop", "-root", "-notype", "_NET_ACTIVE_WINDOW")
    window = front.rpartition(" ")[2].strip()
    if not window.startswith("0x"):
        return None
    state = ask("xprop", "-id", window, "-notype", "_NET_WM_STATE")
    return "_NET_WM_STATE_FULLSCREEN" in state


def _ask(*words: str) -> str:
    """What a short command prints; "" where it is missing, fails or takes too long."""
    if shutil.which(words[0]) is None:
        return ""
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=CALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return ended.stdout if ended.returncode == 0 else ""


def _least(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else min(a, b)
