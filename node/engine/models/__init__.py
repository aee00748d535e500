"""The model families: how each puts its decoder layers together from the shared parts.

A family that differs from Llama only by what the spec says (biases, a window, norms of q and k,
layers without rotation) has no file of its own.
"""

from collections.abc import Callable, Mapping
from typing import Final

from node.engine.layers.block import Block
from node.engine.models import experts, gemma, gpt_oss, llama, phi3
from node.engine.models.parts import ReadTensor, under
from plait.types import Architecture, ModelSpec

_LOADERS: Final[Mapping[Architecture, Callable[[ReadTensor, ModelSpec, int], Block]]] = {
    Architecture.LLAMA: llama.load_block,
    Architecture.QWEN2: llama.load_block,
    Architecture.QWEN3: llama.load_block,
    Architecture.MISTRAL: llama.load_block,
    Architecture.SMOLLM3: llama.load_block,
    Architecture.PHI3: phi3.load_block,
    Architecture.GEMMA2: gemma.load_block,
    Architecture.GEMMA3: gemma.load_block,
    Architecture.MIXTRAL: experts.load_block,
    Architecture.QWEN3_MOE: experts.load_block,
    Architecture.GPT_OSS: gpt_oss.load_block,
}


def load_block(read: ReadTensor, spec: ModelSpec, layer: int) -> Block:
    """Decoder layer `layer` of the model, from tensors that `read` gives by name."""
    loader = _LOADERS[spec.architecture]
    return loader(under(read, f"model.layers.{layer}"), spec, layer)
