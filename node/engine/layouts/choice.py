"""Which layout a device holds a model's weights in: what is possible, and then what is fastest."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from node.engine.device import Device
from node.engine.kernels.processor import has_kernels
from node.engine.layouts.coded import CodedWeight, random_coded, stored_kind
from node.engine.layouts.coded_tiles import coded_linear
from node.engine.layouts.grouped import GroupedWeight, group_for, quantize_grouped
from node.engine.layouts.half import HalfLinear, can_half, padded_rows, require_half
from node.engine.layouts.int4 import Int4Linear, can_int4
from node.engine.layouts.int8 import Int8Linear, can_int8, quantize_rows
from node.engine.layouts.kernel_linear import fits_kernels, kernel_linear
from node.engine.layouts.tiles import TILE_ELEMENTS, CodeTiles, HalfTiles, TiledLinear
from node.engine.layouts.weights import StackedLinear, StackedWeight, Weight
from node.engine.linear import (
    ROWS_MIN,
    Linear,
    PackedLinear,
    PlainLinear,
    can_pack,
    packed_rows_min,
)
from plait.errors import ModelError
from plait.models.coded import CodeKind
from plait.types import DType, ModelSpec, WeightFormat

Make = Callable[[Tensor, Tensor | None], Linear]
"""From a dense weight (out, in), as it was read, and a bias."""

KERNELS = "kernels"
"""What the layout of codes is called that are multiplied by kernels compiled for them."""

_ROWS = (1, 4, 8)
"""A lone request, a few, and a full batch: a layout should be good at all of them."""

_TILE_SIZES = (1 << 19, 1 << 18, 1 << 20)
_CUDA_TILE_SIZES = (1 << 24, 1 << 22)
_BUDGET_S = 0.03
_DRAWN = 1 << 18
_MEASURED_PARAMS_MAX = 16_000_000
_PREFERRED_BY = 1.3
"""How much slower the first choice may measure: noise is no reason to change it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A way to hold matrices. Steps have at least `rows_min` rows."""

    name: str
    make: Make
    rows_min: int = 1
    is_single_threaded: bool = False
    tile_elements: int = TILE_ELEMENTS
    """Dense at once of weights that are codes."""

    has_kernels: bool = False
    """Whether codes are multiplied by kernels compiled for them, where one can be."""

    def hold(self, weight: Weight, bias: Tensor | None) -> Linear:
        """Any weight; what is dense as `make` has it."""
        match weight:
            case Tensor():
                return self.make(weight, bias)
            case CodedWeight() if self.has_kernels and fits_kernels(weight):
                return kernel_linear(weight, bias)
            case CodedWeight():
                return coded_linear(weight, bias, tile_elements=self.tile_elements)
            case StackedWeight():
                heights = [part.shape[0] for part in weight.parts]
                biases: Sequence[Tensor | None] = (None,) * len(heights)
                if bias is not None:
                    biases = torch.split(bias, heights)
                parts = zip(weight.parts, biases, strict=True)
                return StackedLinear([self.hold(part, part_bias) for part, part_bias in parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLayouts:
    """What a model's matrices are held in on one device: those of layers, and the LM head."""

    format: WeightFormat
    layers: Layout
    head: Layout

    @property
    def name(self) -> str:
        """For people: "fp16 (fbgemm)", "int8 (int8, head fbgemm)"."""
        if self.layers.name == self.head.name:
            return f"{self.format} ({self.layers.name})"
        return f"{self.format} ({self.layers.name}, head {self.head.name})"

    def name_for(self, *, has_codes: bool, has_dense: bool) -> str:
        """`name`, of weights of which some stay in their file's codes."""
        if not has_codes or not self.layers.has_kernels or self.layers.name == KERNELS:
            return self.name
        return (
            f"{self.format} ({KERNELS}, {self.layers.name})"
            if has_dense
            else f"{self.format} ({KERNELS})"
        )

    @property
    def is_single_threaded(self) -> bool:
        """Whether products use one thread, whatever torch was told."""
        return self.layers.is_single_threaded

    @property
    def rows_min(self) -> int:
        return max(self.layers.rows_min, self.head.rows_min)


def choose_layouts(device: Device, spec: ModelSpec) -> WeightLayouts:
    """The fastest layouts of the model's format here; measured once for a device and a shape, well
    under a second. Raises ModelError for a format that this device cannot hold."""
    width, num_out = spec.hidden_size, 2 * spec.intermediate_size
    num_out = max(32, min(num_out, _MEASURED_PARAMS_MAX // width) // 32 * 32)
    kind = stored_kind(spec) if spec.weight_format is WeightFormat.STORED else None
    return _chosen(device, spec.weight_format, num_out, width, kind)


def keeps_copies(device: Device, spec: ModelSpec) -> bool:
    """Whether the LM head lies in memory in a layout of its own, no table that rows could be looked
    up in."""
    is_native = spec.weight_format is WeightFormat.NATIVE
    return not is_native or can_pack(device.kind, device.dtype)


def sample_weight(
    device: Device, spec: ModelSpec, num_out: int, width: int
) -> Tensor | CodedWeight:
    """Any weight, as those of `spec` are before a layout holds them."""
    kind = stored_kind(spec) if spec.weight_format is WeightFormat.STORED else None
    return _sample(device, num_out, width, kind)


@cache
def _chosen(
    device: Device, weight_format: WeightFormat, num_out: int, width: int, kind: CodeKind | None
) -> WeightLayouts:
    layers, head = _candidates(device, weight_format)
    sample = _sample(device, num_out, width, kind)
    chosen_layers = _fastest(device, layers, sample)
    chosen_head = chosen_layers if head is layers else _fastest(device, head, sample)
    return WeightLayouts(format=weight_format, layers=chosen_layers, head=chosen_head)


def _sample(
    device: Device, num_out: int, width: int, kind: CodeKind | None
) -> Tensor | CodedWeight:
    if kind is not None:
        return random_coded(kind, num_out, width, device.torch_device)
    return fill_random(torch.empty(num_out, width)).to(device.torch_device, device.dtype)


def fill_random(weight: Tensor) -> Tensor:
    """In place, and the same numbers over and over: drawing each costs more than measuring."""
    drawn = torch.empty(_DRAWN, device=weight.device, dtype=weight.dtype).uniform_(-0.02, 0.02)
    for piece in torch.split(weight.view(-1), _DRAWN):
        piece.copy_(drawn[: piece.numel()])
    return weight


def _candidates(
    device: Device, weight_format: WeightFormat
) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """Layouts of layers and of the head, best guess first."""
    kind = device.kind
    match weight_format:
        case WeightFormat.NATIVE:
            native = _native(device)
            return native, native
        case WeightFormat.FP16:
            half = _half(device)
            return half, half
        case WeightFormat.INT8:
            return _int8(kind), _half(device)
        case WeightFormat.Q8_0:
            int8 = _int8(kind)
            return int8, int8
        case WeightFormat.INT4:
            return _int4(kind, None), _half(device)
        case WeightFormat.Q4_1:
            return _int4(kind, 32), _int8(kind)
        case WeightFormat.STORED:
            stored = _stored(device)
            return stored, stored
        case _:
            raise ModelError(
                f"plait's engine holds no weights as {weight_format}",
                reason="weights_format",
            )


def _has_kernels(device: Device) -> bool:
    return device.kind == "cpu" and device.dtype is torch.float32 and has_kernels()


def keeps_codes(device: Device, spec: ModelSpec) -> bool:
    """Whether a matrix stays in its file's own codes here: where the format says so, and where they
    are the quicker way to the same numbers."""
    match spec.weight_format:
        case WeightFormat.STORED:
            return True
        case WeightFormat.NATIVE:
            return _has_kernels(device)
        case _:
            return False


def _native(device: Device) -> tuple[Layout, ...]:
    plain = Layout("plain", lambda w, b: PlainLinear(w.to(device.dtype), b), ROWS_MIN)
    if not can_pack(device.kind, device.dtype):
        return (plain,)
    # No other layout: only packed rows are independent of their neighbours.
    rows_min = packed_rows_min(device.dtype)
    return (
        Layout(
            "onednn",
            lambda w, b: PackedLinear(w.to(device.dtype), b),
            rows_min,
            has_kernels=_has_kernels(device),
        ),
    )


def _half(device: Device) -> tuple[Layout, ...]:
    if device.kind != "cpu" and device.compute_dtype is not DType.FLOAT32:
        return _native(device)  # 16 bits there, too
    if device.dtype is not torch.float32:
        return _native(device)

    def tiles(weight: Tensor, bias: Tensor | None) -> Linear:
        dense = weight.to(torch.float32)
        require_half(dense)
        return TiledLinear(HalfTiles(dense), bias)

    tiled = Layout("fp16 tiles", tiles)
    if device.kind != "cpu" or not can_half():
        return (tiled,)
    fbgemm = Layout(
        "fbgemm",
        lambda w, b: HalfLinear(w.to(torch.float32), b),
        rows_min=padded_rows(1),
        is_single_threaded=True,
    )
    return fbgemm, tiled


def _stored(device: Device) -> tuple[Layout, ...]:
    """Codes have kernels, or are made dense by tiles of a few sizes: how much of them a cache holds
    is measured."""
    native, half = _native(device)[0], _half(device)[0]

    def make(weight: Tensor, bias: Tensor | None) -> Linear:
        if weight.dtype is device.dtype or weight.dtype is torch.float32:
            return native.make(weight, bias)
        if torch.equal(weight.half().to(weight.dtype), weight):
            return half.make(weight, bias)
        return TiledLinear(HalfTiles(weight), bias)  # bfloat16 beyond float16's range

    if _has_kernels(device):
        return (Layout(KERNELS, make, has_kernels=True),)
    sizes = _TILE_SIZES if device.kind == "cpu" else _CUDA_TILE_SIZES
    return tuple(Layout(f"tiles of {size >> 10}k", make, tile_elements=size) for size in sizes)


def _int8(kind: str) -> tuple[Layout, ...]:
    def tiles(weight: Tensor, bias: Tensor | None) -> Linear:
        codes, scale = quantize_rows(weight.to(torch.float32))
        return TiledLinear(CodeTiles(codes, scale.unsqueeze(1), None), bias)

    def packed(weight: Tensor, bias: Tensor | None) -> Linear:
        return Int8Linear(*quantize_rows(weight.to(torch.float32)), bias)

    tiled = Layout("int8 tiles", tiles)
    return (Layout("int8", packed), tiled) if can_int8(kind) else (tiled,)


def _int4(kind: str, group: int | None) -> tuple[Layout, ...]:
    """Groups of `group` columns, or as wide as the weight allows. A weight whose width no group
    divides stays int8."""
    int8 = _int8(kind)[0]

    def packed(weight: Tensor, bias: Tensor | None) -> Linear:
        grouped = _grouped(weight, group)
        return int8.make(weight, bias) if grouped is None else Int4Linear(grouped, bias)

    def tiles(weight: Tensor, bias: Tensor | None) -> Linear:
        grouped = _grouped(weight, group)
        if grouped is None:
            return int8.make(weight, bias)
        pairs = grouped.codes[:, ::2] | grouped.codes[:, 1::2] << 4
        return TiledLinear(
            CodeTiles(pairs, grouped.scale.bfloat16(), grouped.least.bfloat16()), bias
        )

    tiled = Layout("int4 tiles", tiles)
    return (Layout("int4", packed), tiled) if can_int4(kind) else (tiled,)


def _grouped(weight: Tensor, group: int | None) -> GroupedWeight | None:
    width = weight.shape[1]
    wanted = group if group is not None and width % group == 0 else group_for(width)
    return None if wanted is None else quantize_grouped(weight, wanted)


def _fastest(device: Device, layouts: tuple[Layout, ...], sample: Weight) -> Layout:
    """The layout with the least time over all row counts; the first where it is close."""
    if len(layouts) == 1:
        return layouts[0]
    times = [_seconds(device, layout, sample) for layout in layouts]
    if times[0] <= _PREFERRED_BY * min(times):
        return layouts[0]
    return layouts[times.index(min(times))]


@torch.inference_mode()
def _seconds(device: Device, layout: Layout, sample: Weight) -> float:
    linear = layout.hold(sample, None)
    # A processor's own time: what else the machine does changes no choice.
    now_s = time.thread_time if device.kind == "cpu" else time.perf_counter
    total = 0.0
    for count in _ROWS:
        rows = torch.ones(count, sample.shape[1], device=device.torch_device, dtype=device.dtype)
        linear(rows)
        device.synchronize()
        times: list[float] = []
        while len(times) < 2 or sum(times) < _BUDGET_S:
            started = now_s()
            linear(rows)
            device.synchronize()
            times.append(max(now_s() - started, 1e-9))
        total += min(times)
    return total
