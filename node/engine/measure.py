"""How fast a device is: at large products, at reading memory, and at one layer of a model's shape.

Every number is measured within a share of a given time, and of memory, so that a node can join with
any model: where a layer or a head is larger than the share, a smaller one is timed and scaled up.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from node.engine.device import Device
from node.engine.kv_cache import KvPool
from node.engine.layers.block import Block
from node.engine.layouts.choice import choose_layouts, fill_random, sample_weight
from node.engine.layouts.coded import CodedWeight
from node.engine.linear import ROWS_MIN
from node.engine.models import load_block
from node.engine.models.parts import ReadTensor
from node.engine.rope import rotation_tables
from node.engine.runner import Runner
from node.engine.sequence import Sequence as OpenSequence
from node.engine.sequence import StepItem
from node.engine.stage import HeldStage
from node.engine.tensor_bytes import num_bytes
from node.ports import MEASURE_S, DeviceReport, SequenceOpen, StageWork
from plait.models.tensors import tensor_shape
from plait.types import DType, LayerSpan, LayerTiming, ModelSpec, RequestId

Step = Callable[[], object]
_BANDWIDTH_BYTES = 256 << 20
"""Read once per measurement: more than any cache holds."""

_MATMUL_SIZE = {"cpu": 1024, "cuda": 4096}
_LAYER_PARAMS_MAX = 48_000_000
"""A layer with more parameters is measured as a narrower one."""

_CYCLE_PARAMS = 24_000_000
"""Small layers are repeated until they exceed the caches, as a whole span would."""

_LAYERS_MAX = 8
_SHORT_S = 0.5
_LAYERS_MAX_SHORT = 2
"""Who gives less than `_SHORT_S` gets a smaller square and fewer layers: one step of the usual ones
would take all of it."""
_HEAD_PARAMS_MAX = 32_000_000
_CONTEXT_TOKENS = 128
"""Tokens in the cache while a decode step is measured."""

_PREFILL_TOKENS = {"cpu": 64, "cuda": 512}
"""Of the chunk that is timed: on a GPU one of 64 takes no longer than a single row."""

_EXTRA_SEQUENCES = 3
_ROUNDS_MIN = 3
_SHARE_SQUARE, _SHARE_READ, _SHARE_ROUNDS, _SHARE_HEAD, _SHARE_EMBED = 0.22, 0.22, 0.46, 0.09, 0.01


def measure_device(
    device: Device, memory_bytes: int, *, budget_s: float = MEASURE_S
) -> DeviceReport:
    """Time a product of two square matrices, and a product that reads 256 MiB once."""
    size = _MATMUL_SIZE[device.kind] // (2 if budget_s < _SHORT_S else 1)
    left = torch.rand(size, size, device=device.torch_device, dtype=torch.float32).to(device.dtype)
    square_s = _median_s(device, lambda: left @ left, budget_s=_SHARE_SQUARE * budget_s)
    width = 4096
    read_bytes = min(_BANDWIDTH_BYTES, max(memory_bytes // 4, 1 << 20))
    rows = max(1, read_bytes // (width * device.compute_dtype.num_bytes))
    weight = torch.ones(rows, width, device=device.torch_device, dtype=device.dtype)
    row = torch.ones(1, rows, device=device.torch_device, dtype=device.dtype)
    read_s = _median_s(device, lambda: row @ weight, budget_s=_SHARE_READ * budget_s)
    return DeviceReport(
        device_kind=device.kind,
        device_name=device.name,
        memory_bytes=memory_bytes,
        memory_bytes_per_s=num_bytes(weight) / read_s,
        flops_per_s=2 * size**3 / square_s,
        compute_dtype=device.compute_dtype,
        kv_dtype=device.kv_dtype,
    )


def measure_layer(device: Device, spec: ModelSpec, *, budget_s: float = MEASURE_S) -> LayerTiming:
    """Time decode steps of 1 and 4 sequences, a prefill chunk, the head and the embedding, on
    random weights of this model's shape. Milliseconds.

    Steps take turns, and what a further row costs is the median of differences within a round: who
    else keeps the machine busy weighs on both sides of each.
    """
    narrow, scale = _narrowed(spec)
    layers_max = _LAYERS_MAX_SHORT if budget_s < _SHORT_S else _LAYERS_MAX
    num_layers = max(1, min(layers_max, _CYCLE_PARAMS // narrow.layer_params))
    bare, bench = _Bench(device, _tiny(spec), 1), _Bench(device, narrow, num_layers)
    steps = (bare.decode(1), bench.decode(1), bench.decode(1 + _EXTRA_SEQUENCES), bench.prefill())
    rounds = _rounds_ms(device, steps, budget_s=_SHARE_ROUNDS * budget_s)
    overhead_ms = statistics.median(bare_ms for bare_ms, *_ in rounds)
    decode_ms = statistics.median(one_ms - bare_ms for bare_ms, one_ms, *_ in rounds)
    extra_ms = statistics.median(four_ms - one_ms for _, one_ms, four_ms, _ in rounds)
    prompt_ms = statistics.median(chunk_ms - one_ms for _, one_ms, _, chunk_ms in rounds)
    per_layer = scale / num_layers
    return LayerTiming(
        model_id=spec.model_id,
        decode_layer_ms=max(decode_ms, 1e-4) * per_layer,
        decode_layer_ms_per_extra=max(extra_ms, 0.0) * per_layer / _EXTRA_SEQUENCES,
        prefill_layer_ms_per_token=max(prompt_ms, 1e-4) * per_layer / (bench.prefill_tokens - 1),
        head_ms=_head_ms(device, spec, budget_s=_SHARE_HEAD * budget_s),
        embed_ms=_embed_ms(device, spec, budget_s=_SHARE_EMBED * budget_s),
        step_overhead_ms=overhead_ms,
    )


class _Bench:
    """A runner over random layers, and works to time on it."""

    def __init__(self, device: Device, spec: ModelSpec, num_layers: int) -> None:
        self._device = device
        # One layer more than is held: neither the first nor the last stage.
        self._spec = replace(spec, num_layers=num_layers + 2)
        self._span = LayerSpan(1, 1 + num_layers)
        self.prefill_tokens = _PREFILL_TOKENS[device.kind]
        positions = max(_CONTEXT_TOKENS + 1, self.prefill_tokens)
        pool = KvPool(
            num_layers=num_layers,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            num_slots=positions * (1 + _EXTRA_SEQUENCES),
            device=device,
        )
        pool.clear()
        self._positions = positions
        self._runner = Runner(
            HeldStage(
                spec=self._spec,
                span=self._span,
                embedding=None,
                blocks=tuple(_random_block(spec, device) for _ in range(num_layers)),
                final_norm=None,
                head=None,
                head_shares_embedding=False,
                rotations=rotation_tables(spec, positions, device.torch_device),
                rows_min=choose_layouts(device, spec).rows_min,
            ),
            pool,
            device,
        )

    def decode(self, num_sequences: int) -> Step:
        """One step of `num_sequences` sequences that are `_CONTEXT_TOKENS` long."""
        items = [self._item(index, _CONTEXT_TOKENS, 1) for index in range(num_sequences)]
        return lambda: self._runner.run(items)

    def prefill(self) -> Step:
        """One step of one prompt's first chunk."""
        items = [self._item(0, 0, self.prefill_tokens)]
        return lambda: self._runner.run(items)

    def _item(self, index: int, position: int, num_tokens: int) -> StepItem:
        request_id = RequestId(f"measure-{index}")
        opened = SequenceOpen(
            request_id=request_id,
            epoch=0,
            span=self._span,
            kv_tokens=self._positions,
            wire_dtype=DType.FLOAT32,
        )
        hidden = bytes(num_tokens * self._spec.hidden_size * 4)
        work = StageWork(request_id, 0, position, num_tokens, hidden=hidden)
        sequence = OpenSequence(opened)
        sequence.runs = ((index * self._positions, self._positions),)
        return StepItem(sequence, work)


def _random_block(spec: ModelSpec, device: Device) -> Block:
    """A layer of this family, made as the loader makes it."""

    def read(name: str) -> Tensor:
        shape = tensor_shape(spec, name)
        if name.endswith("norm.weight"):
            return torch.ones(shape, device=device.torch_device, dtype=device.dtype)
        return _random(device, *shape)

    def read_weight(name: str) -> Tensor | CodedWeight:
        return sample_weight(device, spec, *tensor_shape(spec, name))

    layout = choose_layouts(device, spec).layers
    return load_block(ReadTensor(read, layout.hold, read_weight=read_weight), spec, 0)


def _random(device: Device, *shape: int) -> Tensor:
    weight = torch.empty(shape, device=device.torch_device, dtype=device.dtype)
    return fill_random(weight)


def _narrowed(spec: ModelSpec) -> tuple[ModelSpec, float]:
    """A spec whose layer has at most `_LAYER_PARAMS_MAX` parameters, and how many times more the
    true layer has of those that a token meets. The hidden width stays, heads and the MLP shrink.

    Of many experts those few are built that so many sequences could choose.
    """
    if spec.num_experts:
        chosen = spec.experts_per_token * (1 + _EXTRA_SEQUENCES)
        spec = replace(spec, num_experts=min(spec.num_experts, chosen))
    if spec.layer_params <= _LAYER_PARAMS_MAX:
        return spec, 1.0
    share = _LAYER_PARAMS_MAX / spec.layer_params
    group = max(1, spec.num_heads // spec.num_kv_heads)
    num_kv_heads = max(1, int(spec.num_kv_heads * share))
    narrow = replace(
        spec,
        num_kv_heads=num_kv_heads,
        num_heads=num_kv_heads * group,
        intermediate_size=max(64, int(spec.intermediate_size * share) // 64 * 64),
    )
    return narrow, spec.active_layer_params / narrow.active_layer_params


def _tiny(spec: ModelSpec) -> ModelSpec:
    """A layer so small that what remains of a step is its overhead."""
    return replace(
        spec,
        hidden_size=64,
        intermediate_size=64,
        num_heads=1,
        num_kv_heads=1,
        head_dim=16,
        rotary_dim=None,
        rope_scaling=None,
    )


def _head_ms(device: Device, spec: ModelSpec, *, budget_s: float) -> float:
    vocab = min(spec.vocab_size, max(64, _HEAD_PARAMS_MAX // spec.hidden_size))
    layouts = choose_layouts(device, spec)
    head = layouts.head.hold(sample_weight(device, spec, vocab, spec.hidden_size), None)
    rows = torch.zeros(
        layouts.rows_min, spec.hidden_size, device=device.torch_device, dtype=device.dtype
    )
    timed_s = _median_s(device, lambda: head(rows).argmax(dim=-1), budget_s=budget_s)
    return 1e3 * timed_s * spec.vocab_size / vocab


def _embed_ms(device: Device, spec: ModelSpec, *, budget_s: float) -> float:
    vocab = min(spec.vocab_size, max(64, _HEAD_PARAMS_MAX // 4 // spec.hidden_size))
    table = _random(device, vocab, spec.hidden_size)
    ids = torch.zeros(ROWS_MIN, dtype=torch.int64, device=device.torch_device)
    return 1e3 * _median_s(device, lambda: table[ids], budget_s=budget_s)


def _rounds_ms(
    device: Device, steps: Sequence[Step], *, budget_s: float
) -> list[tuple[float, ...]]:
    """What each of `steps` took, round by round, after one that nobody counts."""
    rounds: list[tuple[float, ...]] = []
    for step in steps:
        _timed_s(device, step)
    while len(rounds) < _ROUNDS_MIN or sum(map(sum, rounds)) < 1e3 * budget_s:
        rounds.append(tuple(1e3 * _timed_s(device, step) for step in steps))
    return rounds


def _median_s(device: Device, step: Step, *, budget_s: float) -> float:
    """Median seconds of `step`, run at least twice after one warm-up, for about `budget_s`."""
    _timed_s(device, step)
    times: list[float] = []
    while len(times) < 2 or sum(times) < budget_s:
        times.append(_timed_s(device, step))
    return statistics.median(times)


@torch.inference_mode()
def _timed_s(device: Device, step: Step) -> float:
    started = time.perf_counter()
    step()
    device.synchronize()
    return max(time.perf_counter() - started, 1e-9)
