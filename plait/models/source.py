"""How weights are read, whatever they are stored in. No torch here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from plait.types import DType, LayerSpan, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorData:
    """One tensor: row-major little-endian bytes of `dtype`, in Hugging Face's name and layout."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    buffer: memoryview


class TensorSource(Protocol):
    """An opened model. Names and layouts are Hugging Face's, e.g.
    `model.layers.3.self_attn.q_proj.weight` (out, in); a GGUF is mapped and dequantised."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def digest(self) -> str:
        """sha256 (hex) of the weights' manifest: the same on every node for the same weights."""
        ...

    @property
    def total_bytes(self) -> int:
        """Size of all tensors as stored."""
        ...

    @property
    def read_bytes(self) -> int:
        """Bytes read from the store so far, headers included."""
        ...

    def tensor_names(self) -> frozenset[str]: ...

    def stored_bytes(self, name: str) -> int:
        """Size of one tensor as stored."""
        ...

    def read(self, name: str) -> TensorData:
        """Read one tensor, and only its bytes. Raises WeightsError."""
        ...

    def close(self) -> None: ...


ReadProgress = Callable[[int, int], None]


def span_tensor_names(spec: ModelSpec, span: LayerSpan) -> list[str]:
    """Names of the tensors that a holder of `span` needs, in the order they are used.

    The first span needs the embedding; the last one the final norm and the LM head, which is the
    embedding itself where the model ties them.
    """
    names: list[str] = []
    is_last = span.end == spec.num_layers
    if span.start == 0:
        names.append("model.embed_tokens.weight")
    for layer in range(span.start, span.end):
        names.extend(f"model.layers.{layer}.{leaf}" for leaf in _layer_leaves(spec))
    if is_last:
        names.append("model.norm.weight")
        head = "model.embed_tokens.weight" if spec.tie_embeddings else "lm_head.weight"
        if head not in names:
            names.append(head)
    return names


def _layer_leaves(spec: ModelSpec) -> list[str]:
    leaves = ["input_layernorm.weight"]
    for projection in ("q_proj", "k_proj", "v_proj"):
        leaves.append(f"self_attn.{projection}.weight")
        if spec.attention_bias:
            leaves.append(f"self_attn.{projection}.bias")
    if spec.qk_norm:
        leaves += ["self_attn.q_norm.weight", "self_attn.k_norm.weight"]
    leaves.append("self_attn.o_proj.weight")
    if spec.attention_output_bias:
        leaves.append("self_attn.o_proj.bias")
    leaves.append("post_attention_layernorm.weight")
    for projection in ("gate_proj", "up_proj", "down_proj"):
        leaves.append(f"mlp.{projection}.weight")
        if spec.mlp_bias:
            leaves.append(f"mlp.{projection}.bias")
    return leaves
