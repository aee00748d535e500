"""Reads a span's tensors, and only these, and builds the stage from them."""

from collections.abc import Callable

import torch
from torch import Tensor

from node.engine.device import Device
from node.engine.embedding import Embedding, RowEmbedding, TableEmbedding
from node.engine.layers.joins import ALONE, Joins
from node.engine.layers.norm import RmsNorm
from node.engine.layouts.choice import choose_layouts
from node.engine.layouts.half import HALF_MAX
from node.engine.linear import Linear, PlainLinear
from node.engine.models import load_block
from node.engine.models.parts import ReadTensor, load_norm
from node.engine.rope import rotation_tables
from node.engine.stage import HeldStage
from node.engine.tensor_bytes import tensor_from_bytes
from plait.errors import WeightsError
from plait.models.source import TensorSource
from plait.models.tensors import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    span_tensor_names,
    tensor_shape,
    whole_tensor_names,
)
from plait.types import LayerSpan, ModelSpec, WeightFormat

ReadProgress = Callable[[int, int], None]
"""Called with (done, total) bytes as stored, after each tensor."""


def load_stage(
    source: TensorSource,
    spec: ModelSpec,
    span: LayerSpan,
    device: Device,
    *,
    num_positions: int,
    cached_rows: int | None,
    progress: ReadProgress,
    joins: Joins = ALONE,
) -> HeldStage:
    """Build the stage that holds `span`. Where that is the first, it takes `source` over.

    `num_positions` is how long a sequence can become here, `cached_rows` how many rows of the
    embedding stay in memory. None on a node with both ends of a tied model makes them one table.
    A rank of a group has its part of the tensors in `source`, in `spec` its part of the widths, and
    in `joins` the others.
    Raises WeightsError, naming the tensor, for a missing or misshapen one, NaN and infinities.
    """
    reader = _Reader(source, spec, span, device, progress)
    layouts = choose_layouts(device, spec)
    read = ReadTensor(reader.read, layouts.layers.make, joins)
    blocks = tuple(load_block(read, spec, layer) for layer in range(span.start, span.end))
    final_norm: RmsNorm | None = None
    head: Linear | None = None
    embedding: Embedding | None = None
    shares = False
    if span.end == spec.num_layers:
        final_norm = load_norm(read, FINAL_NORM, spec)
        table = reader.read(EMBEDDING if spec.tie_embeddings else HEAD)
        shares = cached_rows is None and span.start == 0 and spec.tie_embeddings
        head = PlainLinear(table) if shares else joins.head(layouts.head.make(table, None))
        if shares:
            embedding = TableEmbedding(table)
    if span.start == 0 and embedding is None and joins.leads:
        embedding = RowEmbedding(source, spec, device, cached_rows=cached_rows or 0)
        embedding([0])  # what cannot be read at all is refused now
    return HeldStage(
        spec=spec,
        span=span,
        embedding=embedding,
        blocks=blocks,
        final_norm=final_norm,
        head=head,
        head_shares_embedding=shares,
        rotations=rotation_tables(spec, num_positions, device.torch_device),
        rows_min=layouts.rows_min,
        layout=layouts.name,
        runs_in_lanes=layouts.is_single_threaded and joins.is_alone,
    )


class _Reader:
    """Reads tensors by name, checks them, and moves them to the device and its dtype."""

    def __init__(
        self,
        source: TensorSource,
        spec: ModelSpec,
        span: LayerSpan,
        device: Device,
        progress: ReadProgress,
    ) -> None:
        self._source = source
        self._spec = spec
        self._device = device
        self._progress = progress
        self._is_half = spec.weight_format is WeightFormat.FP16
        names = span_tensor_names(spec, span)
        present = source.tensor_names()
        missing = [name for name in names if name not in present]
        if missing:
            raise WeightsError(
                f"the weights of {spec.model_id} lack {missing[0]} and {len(missing) - 1} more "
                f"tensors of layers {span}",
                reason="weights_missing",
            )
        self._done_bytes = 0
        self._total_bytes = sum(
            source.stored_bytes(name) for name in whole_tensor_names(spec, span)
        )

    def read(self, name: str) -> Tensor:
        """One tensor on the device, in its dtype and in the model's shape."""
        stored = self._source.read(name)
        shape = tensor_shape(self._spec, name)
        if stored.shape != shape:
            raise WeightsError(
                f"{name} has shape {stored.shape}, {self._spec.model_id} needs {shape}",
                reason="weights_shape",
            )
        try:
            tensor = tensor_from_bytes(stored.buffer, stored.dtype, shape)
        except ValueError as error:
            raise WeightsError(f"{name} is truncated: {error}") from error
        tensor = tensor.to(self._device.dtype)
        if not bool(torch.isfinite(tensor).all()):
            raise WeightsError(f"{name} holds NaN or infinite values", reason="weights_not_finite")
        if self._is_half and float(tensor.abs().max()) > HALF_MAX:
            raise WeightsError(
                f"{name} holds {float(tensor.abs().max()):.3g}, which is beyond float16: serve "
                "this model with --weights fp32",
                reason="weights_range",
            )
        self._done_bytes += self._source.stored_bytes(name)
        self._progress(self._done_bytes, self._total_bytes)
        return tensor.to(self._device.torch_device)
