"""How weights are read, whatever they are stored in. No torch here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

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

    def read_rows(self, name: str, rows: Sequence[int]) -> TensorData:
        """Some rows of a matrix, rising, (len(rows), columns), bit for bit as `read` has them.

        Reads the rows' own bytes from a file; from a remote one, what lies around them too, once.
        Safe beside `prefetch_rows` in another thread. Raises WeightsError.
        """
        ...

    def has_rows(self, name: str, rows: Sequence[int]) -> bool:
        """Whether `read_rows` would find these rows without a network. Quick."""
        ...

    def prefetch_rows(self, name: str, rows: Sequence[int]) -> None:
        """Bring rows to this machine, where they are elsewhere. Raises WeightsError, ModelError."""
        ...

    def close(self) -> None: ...


ReadProgress = Callable[[int, int], None]
EMBEDDING: Final = "model.embed_tokens.weight"


def span_tensor_names(spec: ModelSpec, span: LayerSpan) -> list[str]:
    """Names of the tensors that a holder of `span` needs, in the order they are used.

    The first span needs the embedding; the last one the final norm and the LM head, which is the
    embedding itself where the model ties them.
    """
    names: list[str] = []
    is_last = span.end == spec.num_layers
    if span.start == 0:
        names.append(EMBEDDING)
    for layer in range(span.start, span.end):
        names.extend(f"model.layers.{layer}.{leaf}" for leaf in _layer_leaves(spec))
    if is_last:
        names.append("model.norm.weight")
        head = EMBEDDING if spec.tie_embeddings else "lm_head.weight"
        if head not in names:
            names.append(head)
    return names


def whole_tensor_names(spec: ModelSpec, span: LayerSpan) -> list[str]:
    """Those of `span_tensor_names` that a holder of `span` must read as a whole: not the embedding,
    whose rows can be looked up one by one, unless it is the LM head here too."""
    names = span_tensor_names(spec, span)
    is_head_too = spec.tie_embeddings and span.end == spec.num_layers
    return names if is_head_too else [name for name in names if name != EMBEDDING]


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
