"""What an owner allows: limits of memory, power, traffic and disk, hours, and when to pause.

The one list of settings: `node.toml`, the environment and `--set` all go by it, and so do the docs.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from node.owner.schedule import Schedule
from plait.types import KvDtype

GB: Final = 1 << 30
"""Of memory and disk, as device makers and tools of the system count memory."""
TRAFFIC_GB: Final = 10**9
"""Of traffic, as network providers count it."""
KV_DTYPES: Final = ("auto", *KvDtype)
SETTLE_S: Final = 15.0
MBIT_BYTES: Final = 125_000
"""Bytes/s in a Mbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseWhen:
    """When the machine is its owner's alone. None and False: never for that.

    Attributes:
        other_gpu_process_mb: other programs hold at least this much GPU memory together, MiB.
        battery: the machine runs on its battery.
        user_active_min: somebody has used the machine within these minutes.
        fullscreen: the window in front fills a screen.
        settle_s: how long rules must have been silent before the node serves again: programs that
            start and end, and windows that change, do not make it load each time.
    """

    other_gpu_process_mb: float | None = None
    battery: bool = False
    user_active_min: float | None = None
    fullscreen: bool = False
    settle_s: float = SETTLE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """Everything that `node.toml` may say. None and empty: no limit.

    Attributes:
        vram_max_gb: most GPU memory of the node.
        vram_reserve_gb: GPU memory that is left free for others when the node measures and loads.
        ram_max_gb: most memory of the engine where it computes on a CPU.
        power_limit_w: most power of the GPU.
        temp_max_c: hottest that the GPU may become.
        up_mbit: fastest sending to the network.
        down_mbit: fastest receiving from it, weights included.
        monthly_gb: most traffic, both ways together, in a calendar month.
        serve_weights: whether weights that lie here are given to neighbours.
        disk_gb: most disk for weights.
        disk_min_free_gb: disk that fetching weights leaves free.
        schedule: hours in which the machine is lent.
        devices: what may be computed on, best first.
        models_allow: names of models that may be held; `*` stands for any characters.
        kv_dtype: what keys and values are kept in: "auto", "native" or "int8".
        draft_model: small model that guesses tokens where this node is the first stage.
    """

    vram_max_gb: float | None = None
    vram_reserve_gb: float | None = None
    ram_max_gb: float | None = None
    power_limit_w: float | None = None
    temp_max_c: float | None = None
    up_mbit: float | None = None
    down_mbit: float | None = None
    monthly_gb: float | None = None
    serve_weights: bool = True
    disk_gb: float | None = None
    disk_min_free_gb: float | None = None
    schedule: Schedule | None = None
    devices: tuple[str, ...] = ()
    models_allow: tuple[str, ...] = ()
    kv_dtype: str = ""
    draft_model: str = ""
    pause_when: PauseWhen = field(default_factory=PauseWhen)

    def memory_max_bytes(self, device_kind: str) -> int | None:
        """Most memory of the engine on a device of this kind, "cpu" or "cuda"."""
        limit_gb = self.vram_max_gb if device_kind == "cuda" else self.ram_max_gb
        return int(limit_gb * GB) if limit_gb is not None else None

    def bytes_per_s(self, mbit: float | None) -> float | None:
        """A rate in bytes/s."""
        return mbit * MBIT_BYTES if mbit is not None else None


class Kind(StrEnum):
    """What a setting's value is."""

    NUMBER = "number"
    SWITCH = "switch"
    WORDS = "words"
    SCHEDULE = "schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: its key, its bounds, and why the lower one is where it is."""

    key: str
    kind: Kind
    low: float = 0.0
    high: float = 1e6
    why_low: str = ""


SETTINGS: Final = {
    setting.key: setting
    for setting in (
        Setting(
            key="vram_max_gb",
            kind=Kind.NUMBER,
            low=0.0625,
            why_low="the buffers of a single layer need that much",
        ),
        Setting(key="vram_reserve_gb", kind=Kind.NUMBER),
        Setting(
            key="ram_max_gb",
            kind=Kind.NUMBER,
            low=0.0625,
            why_low="the buffers of a single layer need that much",
        ),
        Setting(key="power_limit_w", kind=Kind.NUMBER, low=30, why_low="GPUs need that much idle"),
        Setting(
            key="temp_max_c", kind=Kind.NUMBER, low=40, high=110, why_low="GPUs are warmer idle"
        ),
        Setting(
            key="up_mbit",
            kind=Kind.NUMBER,
            low=1,
            why_low="the largest frame would take longer than neighbours wait",
        ),
        Setting(
            key="down_mbit",
            kind=Kind.NUMBER,
            low=1,
            why_low="the largest frame would take longer than neighbours wait",
        ),
        Setting(key="monthly_gb", kind=Kind.NUMBER, low=0.001, why_low="joining needs that much"),
        Setting(key="serve_weights", kind=Kind.SWITCH),
        Setting(key="disk_gb", kind=Kind.NUMBER, low=0.01, why_low="no layer is smaller"),
        Setting(key="disk_min_free_gb", kind=Kind.NUMBER),
        Setting(key="schedule", kind=Kind.SCHEDULE),
        Setting(key="devices", kind=Kind.WORDS),
        Setting(key="models_allow", kind=Kind.WORDS),
        Setting(key="kv_dtype", kind=Kind.WORDS),
        Setting(key="draft_model", kind=Kind.WORDS),
        Setting(
            key="pause_when.other_gpu_process_mb",
            kind=Kind.NUMBER,
            low=1,
            why_low="every program with a window holds some",
        ),
        Setting(key="pause_when.battery", kind=Kind.SWITCH),
        Setting(
            key="pause_when.user_active_min",
            kind=Kind.NUMBER,
            low=0.5,
            high=24 * 60,
            why_low="the system reports idle times no finer",
        ),
        Setting(key="pause_when.fullscreen", kind=Kind.SWITCH),
        Setting(key="pause_when.settle_s", kind=Kind.NUMBER, high=24 * 3600),
    )
}
