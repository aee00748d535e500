"""The shape of a model, and what its parts weigh."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from plait.types.ids import ModelId
from plait.types.span import LayerSpan


class DType(StrEnum):
    """Element type of weights in memory and of activations. INT8 is for activations on a hop alone:
    rows in groups with scales, see `row_bytes`."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"

    @property
    def num_bytes(self) -> int:
        """Of one number; INT8's scales and outliers are not in it."""
        if self is DType.INT8:
            return 1
        return 4 if self is DType.FLOAT32 else 2

    def row_bytes(self, hidden_size: int) -> int:
        """Of one token's hidden state on a hop."""
        if self is not DType.INT8:
            return hidden_size * self.num_bytes
        num_groups = -(-hidden_size // INT8_GROUP)
        return hidden_size + num_groups + INT8_OUTLIER_BYTES * int8_outliers(hidden_size)


class KvDtype(StrEnum):
    """What keys and values are kept in. NATIVE: the compute dtype; INT8: codes, and a float16 scale
    for each head and token."""

    NATIVE = "native"
    INT8 = "int8"

    def vector_bytes(self, head_dim: int, dtype: DType) -> int:
        """One head's keys, or values, of one token, where `dtype` is computed in."""
        return head_dim * dtype.num_bytes if self is KvDtype.NATIVE else head_dim + 2


INT8_GROUP: Final = 32
"""Numbers of an int8 row that share a scale of one byte."""

INT8_OUTLIER_BYTES: Final = 4
"""A place in 16 bits and a float16."""

_HIDDEN_PER_OUTLIER: Final = 256


def int8_outliers(hidden_size: int) -> int:
    """The largest numbers of an int8 row, which it carries apart."""
    return min(hidden_size, max(1, hidden_size // _HIDDEN_PER_OUTLIER))


class WeightFormat(StrEnum):
    """What numbers a model's weights are in a network, the same on every node. NATIVE: the compute
    dtype's. FP16: rounded to it, activations stay wide. INT4, INT8 and FP8 keep embedding and LM
    head in 16 bits; the others do not. STORED: what the file has, in its own bits."""

    NATIVE = "native"
    FP16 = "fp16"
    INT8 = "int8"
    FP8 = "fp8"
    INT4 = "int4"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    STORED = "stored"

    def layer_bits(self, dtype: DType) -> float:
        """Bits of a weight inside a layer, scales included (a 16-bit scale and zero per 128
        weights, or GGUF's blocks of 32)."""
        return _LAYER_BITS.get(self, 8.0 * dtype.num_bytes)

    def end_bits(self, dtype: DType) -> float:
        """Bits of a weight of the embedding and the LM head."""
        return _END_BITS.get(self, 8.0 * dtype.num_bytes)


_LAYER_BITS: Final = {
    WeightFormat.FP16: 16.0,
    WeightFormat.INT8: 8.25,
    WeightFormat.FP8: 8.25,
    WeightFormat.INT4: 4.25,
    WeightFormat.Q8_0: 8.5,
    WeightFormat.Q4_0: 4.5,
    WeightFormat.Q4_1: 5.0,
}
_END_BITS: Final = {
    WeightFormat.FP16: 16.0,
    WeightFormat.INT8: 16.0,
    WeightFormat.FP8: 16.0,
    WeightFormat.INT4: 16.0,
    WeightFormat.Q8_0: 8.5,
    WeightFormat.Q4_0: 6.5625,
    WeightFormat.Q4_1: 8.5,
}
"""Files of 4-bit blocks keep the head in 6-bit ones; Q4_1 of plait's engine in 8-bit ones."""

GROUP_COLUMNS: Final = 128
"""Columns of a 4-bit weight that share a scale; fewer where they do not divide its width, and 8
bits where not even the fewest do."""

GROUP_COLUMNS_MIN: Final = 32


class Architecture(StrEnum):
    """Model families that the engine runs."""

    LLAMA = "llama"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    MISTRAL = "mistral"
    PHI3 = "phi3"
    GEMMA2 = "gemma2"
    GEMMA3 = "gemma3"
    MIXTRAL = "mixtral"
    QWEN3_MOE = "qwen3_moe"
    SMOLLM3 = "smollm3"
    GPT_OSS = "gpt_oss"


class Activation(StrEnum):
    """What the gate of an MLP goes through."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    CLAMPED_SWIGLU = "clamped_swiglu"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Extension of the rotary embedding beyond the trained context.

    `kind` is "linear", "llama3", "yarn", "dynamic" or "longrope". The frequency factors are
    llama3's, the betas and `truncates` (its ramp ends at whole channels) yarn's. longrope divides
    each frequency by a factor of its own, other ones for sequences longer than the original
    context. `attention_factor` scales what is rotated; None: by the kind's own formula.
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_tokens: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncates: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """All that planning, measuring and building a stage need. Widths in elements.

    Layers are alike but for two things: `full_attention_layers` see the whole sequence where the
    others have a window, `unrotated_layers` have no rotary embedding. With experts,
    `intermediate_size` is the width of one.
    """

    model_id: ModelId
    architecture: Architecture
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_tokens_max: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window_tokens: int | None = None
    full_attention_layers: tuple[int, ...] = ()
    rotary_dim: int | None = None
    """Rotated channels of a head, its first ones; None: all."""

    local_rope_theta: float | None = None
    """Base, unscaled, of the layers with a window; None: as the others."""

    unrotated_layers: tuple[int, ...] = ()
    attention_scale: float | None = None
    """Of queries times keys; None: 1 / sqrt(head_dim)."""

    attention_softcap: float | None = None
    attention_sinks: bool = False
    post_norms: bool = False
    """Norms behind attention and MLP too, before what they add to the residual."""

    activation: Activation = Activation.SILU
    num_experts: int = 0
    """Of every layer; 0: one dense MLP."""

    experts_per_token: int = 0
    renormalises_experts: bool = True
    """The chosen experts' shares sum to one."""

    embedding_scale: float | None = None
    logit_softcap: float | None = None
    eos_token_ids: tuple[int, ...] = ()
    weight_format: WeightFormat = WeightFormat.NATIVE
    stored_layer_bits: float | None = None
    """Of a weight of the largest layer in the file; for STORED."""

    stored_end_bits: float | None = None
    """Of a weight of the LM head in the file."""

    @property
    def whole(self) -> LayerSpan:
        """All layers."""
        return LayerSpan(0, self.num_layers)

    def window_of(self, layer: int) -> int | None:
        """How many tokens a layer looks back, its own included; None: all."""
        return None if layer in self.full_attention_layers else self.sliding_window_tokens

    @property
    def layer_params(self) -> int:
        """Parameters of one decoder layer, all experts included."""
        return self._params_around_mlp + max(1, self.num_experts) * self._mlp_params

    @property
    def active_layer_params(self) -> int:
        """Parameters of one decoder layer that one token is multiplied with."""
        active = self.experts_per_token if self.num_experts else 1
        return self._params_around_mlp + active * self._mlp_params

    @property
    def _mlp_params(self) -> int:
        """Of one MLP, or one expert."""
        params = 3 * self.hidden_size * self.intermediate_size
        if self.mlp_bias:
            params += 2 * self.intermediate_size + self.hidden_size
        return params

    @property
    def _params_around_mlp(self) -> int:
        """Attention, norms and the router."""
        q_width = self.num_heads * self.head_dim
        kv_width = self.num_kv_heads * self.head_dim
        params = self.hidden_size * (2 * q_width + 2 * kv_width)
        params += (4 if self.post_norms else 2) * self.hidden_size
        params += self.num_experts * (self.hidden_size + (1 if self.mlp_bias else 0))
        if self.attention_bias:
            params += q_width + 2 * kv_width
        if self.attention_output_bias:
            params += self.hidden_size
        if self.qk_norm:
            params += 2 * self.head_dim
        if self.attention_sinks:
            params += self.num_heads
        return params

    @property
    def embedding_params(self) -> int:
        """Parameters of the token embedding; the LM head has as many."""
        return self.vocab_size * self.hidden_size

    def weight_bytes(self, span: LayerSpan, dtype: DType) -> int:
        """Bytes of parameters a node needs in memory to hold `span`.

        The first span holds the embedding, the last one the final norm and the LM head; a span
        that is both shares one matrix where the model ties them.
        """
        is_first, is_last = span.start == 0, span.end == self.num_layers
        total = len(span) * self.layer_bytes(dtype)
        if is_first:
            total += self.embedding_bytes(dtype)
        if is_last:
            total += self.hidden_size * dtype.num_bytes
            if not (is_first and self.tie_embeddings):
                total += self.embedding_bytes(dtype)
        return total

    def layer_bytes(self, dtype: DType) -> int:
        """One decoder layer's weights in memory."""
        bits = self.weight_format.layer_bits(dtype)
        if self.weight_format is WeightFormat.STORED:
            bits = self.stored_layer_bits or bits
        if self.weight_format is WeightFormat.INT4:
            is_grouped = self.group_columns >= GROUP_COLUMNS_MIN
            bits += 32 / self.group_columns - 32 / GROUP_COLUMNS if is_grouped else 4.0
        return math.ceil(self.layer_params * bits / 8)

    @property
    def group_columns(self) -> int:
        """Columns that share a scale where 4-bit weights are made here: fewer where the model's
        widths are not multiples of `GROUP_COLUMNS`."""
        widths = (self.hidden_size, self.intermediate_size, self.num_heads * self.head_dim)
        return min(GROUP_COLUMNS, *(width & -width for width in widths))

    def embedding_bytes(self, dtype: DType) -> int:
        """The embedding in memory; the LM head is as large."""
        bits = self.weight_format.end_bits(dtype)
        if self.weight_format is WeightFormat.STORED:
            bits = self.stored_end_bits or bits
        return math.ceil(self.embedding_params * bits / 8)

    def kv_bytes_per_token(
        self, num_layers: int, dtype: DType, kv_dtype: KvDtype = KvDtype.NATIVE
    ) -> int:
        """Bytes of keys and values that one token needs in `num_layers` layers."""
        return 2 * self.num_kv_heads * kv_dtype.vector_bytes(self.head_dim, dtype) * num_layers

    def layer_flops_per_token(self) -> int:
        """Two per multiply-add of one layer and token; attention over the cache excluded."""
        return 2 * self.active_layer_params


class SourceKind(StrEnum):
    """Where weights can come from."""

    CATALOGUE = "catalogue"
    HUB = "hub"
    PATH = "path"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where the weights of a model come from; every node fetches for itself.

    `digest` is the sha256 of the weights' manifest, None where it is not known yet.
    """

    kind: SourceKind
    name: str
    revision: str | None = None
    digest: str | None = None
