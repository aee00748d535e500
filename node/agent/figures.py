"""What the node does, in figures, for its owner's screens: a small file, written once a second."""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from node.agent.local_status import STALE_MS, is_running
from node.owner.limits import SETTINGS
from node.owner.settings import OwnerSettings
from node.owner.watch import OwnerWatch
from plait import log
from plait.clock import Clock

FILE: Final = "figures.json"
BYTES_MAX: Final = 32_768

_log = log.get("node")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFigures:
    """What a serving node counts. Bytes and tokens since its start; `weights` says where weights
    came from and went to, `draft` what the draft model does, for people."""

    state: str
    model_id: str
    layers: str
    num_requests: int
    tokens_total: int
    stage_ms: float
    kv_tokens_reserved: int
    kv_tokens_max: int
    weight_bytes: int
    sent_bytes: int
    received_bytes: int
    weights: str = ""
    draft: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """One look. `uptime_s` of this process, `num_tasks` on its loop: a count that grows and grows
    is a leak; `limits` and `notes` are lines for people.

    `memory_max_bytes` is what the engine may use, None for what is free.
    """

    uptime_s: float
    paused: str
    month_bytes: int
    limits: tuple[str, ...]
    notes: tuple[str, ...]
    temp_c: float | None
    power_w: float | None
    other_gpu_mb: float | None
    serving: ServingFigures | None
    num_tasks: int = 0


def _tasks_of_loop() -> int:
    return len(asyncio.all_tasks())


class FiguresFile:
    """Writes and reads the file of a node's folder."""

    def __init__(
        self, home: Path, clock: Clock, num_tasks: Callable[[], int] = _tasks_of_loop
    ) -> None:
        self._num_tasks = num_tasks
        self._path = home / FILE
        self._clock = clock
        self._start_ms = clock.monotonic_ms()
        self._is_failing = False

    def write(self, owner: OwnerWatch, serving: ServingFigures | None) -> None:
        """A disk that takes no more costs the file, never the node."""
        reading, why = owner.reading, owner.why
        figures = NodeFigures(
            uptime_s=(self._clock.monotonic_ms() - self._start_ms) / 1e3,
            paused=why.message if why is not None else "",
            month_bytes=owner.month_bytes,
            limits=limit_lines(owner.settings),
            notes=owner.notes,
            temp_c=reading.gpu_temp_c,
            power_w=reading.power_w,
            other_gpu_mb=reading.other_gpu_process_mb,
            serving=serving,
            num_tasks=self._num_tasks(),
        )
        content = asdict(figures) | {"pid": os.getpid(), "unix_ms": self._clock.unix_ms()}
        draft = self._path.with_name(FILE + ".new")
        try:
            draft.write_text(json.dumps(content), "utf-8")
            draft.replace(self._path)
        except OSError as error:
            if not self._is_failing:
                _log.warning("figures_not_written", path=str(self._path), why=error.strerror)
            self._is_failing = True
        else:
            self._is_failing = False


def read_figures(home: Path, clock: Clock) -> NodeFigures | None:
    """What the node in `home` last counted; None where none runs."""
    try:
        with (home / FILE).open("rb") as file:
            content = json.loads(file.read(BYTES_MAX))
        pid, age_ms = int(content.pop("pid")), clock.unix_ms() - int(content.pop("unix_ms"))
        serving = content.pop("serving")
        for name in ("limits", "notes"):
            content[name] = tuple(str(line) for line in content[name])
        figures = NodeFigures(
            **{name: content[name] for name in _names(NodeFigures) if name != "serving"},
            serving=ServingFigures(**serving) if serving is not None else None,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return figures if is_running(pid) and abs(age_ms) < STALE_MS else None


def limit_lines(settings: OwnerSettings) -> tuple[str, ...]:
    """Every limit that is set, and where: "up_mbit = 8 (node.toml:3)"."""
    return tuple(
        f"{key} = {value_text(settings, key)} ({settings.sources[key]})"
        for key in SETTINGS
        if key in settings.sources
    )


def value_text(settings: OwnerSettings, key: str) -> str:
    """A setting's value as people write it."""
    group, _, name = key.rpartition(".")
    value = getattr(getattr(settings.limits, group) if group else settings.limits, name)
    match value:
        case bool():
            return "true" if value else "false"
        case float() | int():
            return f"{value:g}"
        case str():
            return value
        case tuple():
            return ", ".join(value)
        case _:
            return ", ".join(value.entries)


def _names(kind: type[NodeFigures]) -> list[str]:
    return [field.name for field in fields(kind)]
