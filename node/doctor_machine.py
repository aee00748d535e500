"""What this machine has of what a node needs, and which span it would most likely get."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from node.agent.preflight import Found, Need
from node.agent.weights import OwnersGate, allows_model
from node.doctor_checks import Check, Verdict, passed, skipped
from node.engine.memory import plan_memory
from node.owner.limits import GB
from node.owner.settings import OwnerSettings
from plait.clock import Clock
from plait.errors import OverloadedError
from plait.types import DType, LayerSpan, ModelSpec

KV_TOKENS: Final = 2_048
STEP_TOKENS: Final = 256
SHARE: Final = {"cpu": 0.8, "cuda": 0.92}
SLOW_S: Final = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the doctor sees of this machine. Bytes. `gpu` is (name, driver's version), None where
    no driver answers; `wants_gpu` where the owner asks for one. `torch` is its version, "" where it
    is not installed."""

    memory_free_bytes: int
    gpu: tuple[str, str] | None
    vram_free_bytes: int
    wants_gpu: bool
    may_use_gpu: bool
    torch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """What is examined. `listen` None: the port is not tried, it is in use by the node itself."""

    home: Path
    coordinator: str
    token: str | None
    settings: OwnerSettings
    machine: Machine
    models_dir: Path
    memory_bytes: int | None
    listen: tuple[str, int] | None
    clock: Clock
    now_s: Callable[[], float]
    reach_s: float = 10.0
    gate: OwnersGate | None = None


def torch_version() -> str:
    """Without loading it."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def own_checks(patient: Patient, found: Found | None) -> list[Check]:
    """What this machine has, and what it would get."""
    gpu = _gpu(patient)
    uses_gpu = patient.machine.may_use_gpu and gpu.code == "gpu"
    if found is None:
        return [gpu, *(skipped(name) for name in ("memory", "disk", "span"))]
    kind = "cuda" if uses_gpu else "cpu"
    usable = _usable_bytes(patient, kind)
    needs = [n for n in found.needs if allows_model(patient.settings.limits, n.spec.model_id)]
    if not needs:
        return [gpu, *_nothing_to_hold(patient, found)]
    dtype = DType.BFLOAT16 if uses_gpu else DType.FLOAT32
    best = max((_fitting(n, dtype, usable) for n in needs), key=lambda f: f.num_layers)
    if best.span is None:
        return [gpu, _too_little(patient, kind, best), skipped("disk"), skipped("span")]
    memory = passed("memory", f"{usable / GB:.1f} GiB may be used")
    return [gpu, memory, *_download(patient, best.need, best.span, found)]


def _gpu(patient: Patient) -> Check:
    machine = patient.machine
    has_cuda_torch = "+cpu" not in machine.torch
    if machine.gpu is None:
        if not machine.wants_gpu:
            return Check(
                name="gpu",
                verdict=Verdict.WARN,
                code="no_gpu",
                found="no NVIDIA driver answers: it would compute on the CPU, slowly",
                help="with an NVIDIA GPU, install its driver (nvidia-smi must name it)",
            )
        return Check(
            name="gpu",
            verdict=Verdict.FAIL,
            code="no_driver",
            found="a GPU is asked for, and no NVIDIA driver answers",
            help="install the driver (nvidia-smi must name the GPU), or join with --device cpu",
        )
    name, driver = machine.gpu
    if not machine.may_use_gpu:
        return passed("gpu", f"{name} is left alone: the CPU is asked for", code="unused")
    if not machine.torch or not has_cuda_torch:
        return Check(
            name="gpu",
            verdict=Verdict.FAIL if machine.wants_gpu else Verdict.WARN,
            code="torch_without_cuda",
            found=f"{name} is here, but the torch that is installed computes on CPUs alone",
            help="pip install --force-reinstall torch brings the one for NVIDIA GPUs",
        )
    return passed("gpu", f"{name}, driver {driver}", code="gpu")


def _usable_bytes(patient: Patient, kind: str) -> int:
    machine, limits = patient.machine, patient.settings.limits
    free = machine.vram_free_bytes if kind == "cuda" else machine.memory_free_bytes
    usable = int(free * SHARE[kind])
    if kind == "cuda" and limits.vram_reserve_gb is not None:
        usable = min(usable, free - int(limits.vram_reserve_gb * GB))
    caps = (usable, patient.memory_bytes, limits.memory_max_bytes(kind))
    return max(0, min(cap for cap in caps if cap is not None))


@dataclass(frozen=True, slots=True)
class _Fit:
    """The largest span of a model that fits; `lack` says what is missing where none does."""

    need: Need
    span: LayerSpan | None
    lack: str = ""

    @property
    def num_layers(self) -> int:
        return len(self.span) if self.span is not None else 0


def _fitting(need: Need, dtype: DType, usable_bytes: int) -> _Fit:
    spec, lack = need.spec, ""
    start = need.first_layer
    end = next((m.end for m in need.missing if m.start == start), spec.num_layers)
    for stop in range(end, start, -1):
        span = LayerSpan(start, stop)
        lack = _lack(spec, span, dtype, usable_bytes)
        if not lack:
            return _Fit(need, span)
    return _Fit(need, None, lack)


def _lack(spec: ModelSpec, span: LayerSpan, dtype: DType, usable_bytes: int) -> str:
    try:
        plan_memory(
            spec,
            span,
            dtype,
            usable_bytes=usable_bytes,
            kv_tokens_min=min(KV_TOKENS, spec.context_tokens_max),
            kv_tokens_max=KV_TOKENS,
            step_tokens_max=STEP_TOKENS,
            packs_weights=True,
        )
    except OverloadedError as error:
        return error.message
    return ""


def _too_little(patient: Patient, kind: str, fit: _Fit) -> Check:
    key = "vram_max_gb" if kind == "cuda" else "ram_max_gb"
    is_limited = key in patient.settings.sources
    close = "close programs that hold memory, or lend a machine with more"
    return Check(
        name="memory",
        verdict=Verdict.FAIL,
        code="not_enough_memory",
        found=fit.lack,
        help=f"raise {patient.settings.named(key)}" if is_limited else close,
    )


def _download(patient: Patient, need: Need, span: LayerSpan, found: Found) -> list[Check]:
    """Disk for the span, and how long it takes to come."""
    stored = need.spec.weight_bytes(span, DType.BFLOAT16)
    gate = patient.gate or OwnersGate(
        patient.settings, patient.models_dir, count=lambda _: None, now_s=patient.now_s
    )
    limits = patient.settings.limits
    caps = (found.down_bytes_per_s, limits.bytes_per_s(limits.down_mbit))
    rate = min(cap for cap in caps if cap is not None)
    seconds = stored / max(rate, 1.0)
    about = f"layers {span} of {need.spec.model_id}, about {stored / 1e9:.1f} GB"
    at = f"{_length(seconds)} at {rate * 8 / 1e6:.0f} Mbit/s"
    span_check = Check(
        name="span",
        verdict=Verdict.OK if seconds < SLOW_S else Verdict.WARN,
        code="span" if seconds < SLOW_S else "slow_download",
        found=f"as things stand: {about}; {at} as measured to the coordinator",
        help="" if seconds < SLOW_S else "a wired link, or a higher down_mbit, shortens it",
    )
    free = gate.free_bytes(patient.models_dir)
    if free >= stored:
        return [passed("disk", f"{free / GB:.1f} GiB may be written"), span_check]
    limit = gate.says()
    return [
        Check(
            name="disk",
            verdict=Verdict.FAIL,
            code="disk_full",
            found=f"{about} are to be kept in {patient.models_dir}, {free / 1e9:.1f} GB may be"
            + (f" ({limit})" if limit else ""),
            help="free some disk, raise the limit, or set PLAIT_MODELS to another disk",
        ),
        span_check,
    ]


def _nothing_to_hold(patient: Patient, found: Found) -> list[Check]:
    served = ", ".join(need.spec.model_id for need in found.needs) or "nothing that this knows"
    refused = Check(
        name="span",
        verdict=Verdict.FAIL,
        code="no_model_allowed",
        found=f"the network serves {served}",
        help=f"{patient.settings.named('models_allow')} allows none of them"
        if found.needs
        else "bring plait up to date here",
    )
    return [skipped("memory"), skipped("disk"), refused]


def _length(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return "under a minute"
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
