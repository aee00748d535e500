"""What a node is and how fast it was measured to be."""

from dataclasses import dataclass, field

from plait.types.guesses import DraftHealth, GuessTotals
from plait.types.ids import ModelId, NodeId
from plait.types.model import DType, KvDtype, ModelSpec, WeightFormat
from plait.types.span import LayerSpan
from plait.types.weights import WeightTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTiming:
    """Measured times of one decoder layer of a model on a node, in milliseconds. One token takes
    `decode_layer_ms`; further tokens of its prompt add `prefill_layer_ms_per_token` each."""

    model_id: ModelId
    decode_layer_ms: float
    decode_layer_ms_per_extra: float
    prefill_layer_ms_per_token: float
    head_ms: float
    embed_ms: float
    step_overhead_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """`degree` ranks, on one host or LAN, that share every layer equally and act as one node. The
    link is any two ranks' own."""

    degree: int
    link_bytes_per_s: float
    link_latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProfile:
    """A node's measured self. Bytes, bytes/s and milliseconds.

    `memory_bytes` is what the node may use for weights, KV and buffers together. Figures of a
    `group` are those of all ranks at equal shares: the weakest's times the degree.
    Of `refused_models` the owner lets it hold nothing.
    """

    node_id: NodeId
    display_name: str
    device_kind: str
    device_name: str
    memory_bytes: int
    memory_bytes_per_s: float
    flops_per_s: float
    compute_dtype: DType
    coordinator_rtt_ms: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    timings: tuple[LayerTiming, ...]
    addresses: tuple[str, ...]
    group: TensorGroup | None = None
    refused_models: tuple[ModelId, ...] = ()
    kv_dtype: KvDtype = KvDtype.NATIVE

    def kv_bytes_per_token(self, spec: ModelSpec, num_layers: int) -> int:
        """Bytes of keys and values that one token needs here in `num_layers` layers."""
        return spec.kv_bytes_per_token(num_layers, self.compute_dtype, self.kv_dtype)

    def timing(self, model_id: ModelId) -> LayerTiming | None:
        """The timing for `model_id`, or None where it was not measured."""
        return next((t for t in self.timings if t.model_id == model_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSpan:
    """What a node has loaded. `kv_tokens_max` is the number of KV slots beside the weights,
    `layout` how these lie in memory, for people."""

    model_id: ModelId
    span: LayerSpan
    allocation_epoch: int
    digest: str
    weight_bytes: int
    read_bytes: int
    kv_tokens_max: int
    weight_format: WeightFormat = WeightFormat.NATIVE
    layout: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """What a node's steps took since its start: those of decodes alone, and those of prompts
    alone. `decode_rows` are their sequences, `decode_layers` the layers that each ran, summed up
    over the steps; `prefill_layer_tokens` layers times prompt tokens. Times of computing, without
    waiting."""

    decode_steps: int = 0
    decode_ms: float = 0.0
    decode_rows: int = 0
    decode_layers: int = 0
    prefill_steps: int = 0
    prefill_ms: float = 0.0
    prefill_layer_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """The moving part of a heartbeat."""

    kv_tokens_reserved: int
    num_requests: int
    stage_ms: float
    tokens_total: int
    sent_bytes_total: int
    frames_dropped_total: int
    queue_tokens: int
    steps: StepTotals = StepTotals()
    weights: WeightTotals = field(default_factory=WeightTotals)
    guesses: GuessTotals = field(default_factory=GuessTotals)
    draft: DraftHealth | None = None
    held_up_ms: float = 0.0
    """What a frame that comes at any moment waits until the node's process runs."""
