"""Where a safetensors file has a tensor: under which name, and which part of what lies there."""

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from plait.types import Architecture, ModelSpec

_EXPERT: Final = re.compile(r"(model\.layers\.\d+\.)mlp\.experts\.(\d+)\.(\w+)_proj\.(weight|bias)")
_MIXTRAL: Final = {"gate": "w1", "up": "w3", "down": "w2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A tensor in a file. `expert` is its place in a stack, None where it lies by itself. `half` is
    0 for the even and 1 for the odd ones of interleaved outputs. With `scales` it is MXFP4."""

    stored: str
    expert: int | None = None
    half: int | None = None
    is_transposed: bool = False
    scales: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the file has the tensor as it is needed."""
        return self.expert is None


def view_of(spec: ModelSpec, name: str, present: Container[str]) -> View:
    """Where `name` would be, in a file that has the tensors `present`."""
    if spec.num_experts == 0:
        return View(stored=name)
    match = _EXPERT.fullmatch(name)
    if spec.architecture is Architecture.MIXTRAL:
        if match is not None:
            layer, expert, kind, leaf = match.groups()
            experts = f"{layer}block_sparse_moe.experts"
            return View(stored=f"{experts}.{expert}.{_MIXTRAL[kind]}.{leaf}")
        return View(stored=name.replace(".mlp.gate.", ".block_sparse_moe.gate."))
    if spec.architecture is not Architecture.GPT_OSS:
        return View(stored=name)
    if match is None:
        return View(stored=name.replace(".mlp.gate.", ".mlp.router."))
    return _gpt_oss_expert(match, present)


def _gpt_oss_expert(match: re.Match[str], present: Container[str]) -> View:
    """Experts are stacked, gate and up interleaved; without MXFP4 they are (in, out)."""
    layer, number, kind, leaf = match.groups()
    stack = f"{layer}mlp.experts.{'down' if kind == 'down' else 'gate_up'}_proj"
    half = {"gate": 0, "up": 1}.get(kind)
    expert = int(number)
    if leaf == "bias":
        return View(stored=f"{stack}_bias", expert=expert, half=half)
    if f"{stack}_blocks" in present:
        return View(stored=f"{stack}_blocks", expert=expert, half=half, scales=f"{stack}_scales")
    return View(stored=stack, expert=expert, half=half, is_transposed=True)
