"""Stages loaded from what is on disk, and a prompt through a chain of them."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from node.engine.kv_cache import KvPool
from node.engine.loader import load_stage
from node.engine.runner import Runner
from node.engine.stage import HeldStage
from node.engine.tensor_bytes import tensor_from_bytes
from plait.models import open_source
from plait.models.source import TensorSource
from plait.types import LayerSpan, ModelSource, ModelSpec
from tests.unit.engine.kit import CPU, MemorySource, hidden_item, ids_item, make_sequence, run_rows

Open = Callable[[ModelSource], TensorSource]


def open_dense(source: ModelSource) -> TensorSource:
    """Without codes: every number as float32, in memory."""
    opened = open_source(source)
    dense = {name: opened.read(name) for name in opened.tensor_names()}
    tensors = {
        name: tensor_from_bytes(data.buffer, data.dtype, data.shape).float()
        for name, data in dense.items()
    }
    return MemorySource(opened.spec, tensors)


def load(
    source: ModelSource, spec: ModelSpec, span: LayerSpan, opens: Open = open_source
) -> HeldStage:
    return load_stage(
        opens(source),
        spec,
        span,
        CPU,
        num_positions=64,
        cached_rows=8,
        progress=lambda _done, _total: None,
    )


def chain_logits(
    source: ModelSource,
    spec: ModelSpec,
    ids: list[int],
    cuts: Sequence[int] = (),
    opens: Open = open_source,
) -> Tensor:
    """(T, vocab), from stages that begin at 0 and at `cuts`."""
    bounds = [0, *cuts, spec.num_layers]
    rows: Tensor | None = None
    stage: HeldStage | None = None
    for start, end in pairwise(bounds):
        span = LayerSpan(start, end)
        stage = load(source, spec, span, opens)
        pool = KvPool(
            num_layers=len(span),
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            num_slots=512,
            device=CPU,
        )
        sequence = make_sequence(span)
        if rows is None:
            item = ids_item(sequence, 0, ids)
        else:
            item = hidden_item(sequence, 0, rows.numpy().tobytes(), len(ids))
        (rows,) = run_rows(Runner(stage, pool, CPU), [item])
    assert stage is not None and rows is not None
    with torch.inference_mode():
        return stage.logits(rows)
