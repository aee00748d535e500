"""Reads a span's tensors, and only these, and builds the stage from them."""

from collections.abc import Callable

import torch
from torch import Tensor

from node.engine.device import Device
from node.engine.embedding import Embedding, RowEmbedding, TableEmbedding
from node.engine.layers.joins import ALONE, Joins
from node.engine.layers.norm import RmsNorm
from node.engine.layouts.choice import choose_layouts, keeps_codes
from node.engine.layouts.coded import CodedWeight
from node.engine.layouts.half import HALF_MAX
from node.engine.layouts.kernel_linear import fits_kernels
from node.engine.linear import ROWS_MIN, Linear, PlainLinear
from node.engine.models import load_block
from node.engine.models.parts import ReadTensor, load_norm
from node.engine.rope import rotation_tables
from node.engine.stage import HeldStage
from node.engine.tensor_bytes import tensor_from_bytes
from plait.errors import WeightsError
from plait.models.source import TensorSource, read_coded
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
    read = ReadTensor(reader.read, layouts.layers.hold, joins, reader.read_weight)
    blocks = tuple(load_block(read, spec, layer) for layer in range(span.start, span.end))
    final_norm: RmsNorm | None = None
    head: Linear | None = None
    embedding: Embedding | None = None
    shares = False
    if span.end == spec.num_layers:
        final_norm = load_norm(read, FINAL_NORM, spec)
        name = EMBEDDING if spec.tie_embeddings else HEAD
        shares = cached_rows is None and span.start == 0 and spec.tie_embeddings
        if shares:
            table = reader.read(name)
            head, embedding = PlainLinear(table), TableEmbedding(table)
        else:
            head = joins.head(layouts.head.hold(reader.read_weight(name), None))
    if span.start == 0 and embedding is None and joins.leads:
        embedding = RowEmbedding(source, spec, device, cached_rows=cached_rows or 0)
        embedding([0])  # what cannot be read at all is refused now
    rows_min = layouts.rows_min if reader.has_dense or spec.num_experts else 1
    if shares:
        rows_min = max(rows_min, ROWS_MIN)  # plain products of fewer differ
    return HeldStage(
        spec=spec,
        span=span,
        embedding=embedding,
        blocks=blocks,
        final_norm=final_norm,
        head=head,
        head_shares_embedding=shares,
        rotations=rotation_tables(spec, num_positions, device.torch_device),
        rows_min=rows_min,
        layout=layouts.name_for(has_codes=reader.has_codes, has_dense=reader.has_dense),
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
        self._keeps_codes = keeps_codes(device, spec)
        self.has_codes = False
        """Whether a matrix stays in its file's codes, and whether one does not."""

        self.has_dense = False
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

    def read_weight(self, name: str) -> Tensor | CodedWeight:
        """A matrix: as codes where the format keeps them and the file has some, in 16 bits where
        the file has these."""
        coded = read_coded(self._source, name) if self._keeps_codes else None
        if coded is None:
            self.has_dense = True
            if self._spec.weight_format is not WeightFormat.STORED:
                return self.read(name)
            stored = self._stored(name)
            is_half = stored.dtype in (torch.float16, torch.bfloat16)
            return self._checked(name, stored if is_half else stored.to(self._device.dtype))
        self._require_shape(name, coded.shape)
        weight = CodedWeight.of(coded, self._device.torch_device)
        if self._spec.weight_format is not WeightFormat.STORED and not fits_kernels(weight):
            self.has_dense = True  # its products would be slower, and depend on other rows
            return self._checked(name, torch.from_numpy(coded.dense()).to(self._device.dtype))
        self.has_codes = True
        self._was_read(name)
        return weight

    def read(self, name: str) -> Tensor:
        """One tensor on the device, in its dtype and in the model's shape."""
        return self._checked(name, self._stored(name).to(self._device.dtype))

    def _stored(self, name: str) -> Tensor:
        stored = self._source.read(name)
        self._require_shape(name, stored.shape)
        try:
            return tensor_from_bytes(stored.buffer, stored.dtype, stored.shape)
        except ValueError as error:
            raise WeightsError(f"{name} is truncated: {error}") from error

    def _require_shape(self, name: str, found: tuple[int, ...]) -> None:
        shape = tensor_shape(self._spec, name)
        if found != shape:
            raise WeightsError(
                f"{name} has shape {found}, {self._spec.model_id} needs {shape}",
                reason="weights_shape",
            )

    def _checked(self, name: str, tensor: Tensor) -> Tensor:
        if not bool(torch.isfinite(tensor).all()):
            raise WeightsError(f"{name} holds NaN or infinite values", reason="weights_not_finite")
        if self._is_half and float(tensor.abs().max()) > HALF_MAX:
            raise WeightsError(
                f"{name} holds {float(tensor.abs().max()):.3g}, which is beyond float16: serve "
                "this model with --weights fp32",
                reason="weights_range",
            )
        self._was_read(name)
        return tensor.to(self._device.torch_device)

    def _was_read(self, name: str) -> None:
        self._done_bytes += self._source.stored_bytes(name)
        self._progress(self._done_bytes, self._total_bytes)
