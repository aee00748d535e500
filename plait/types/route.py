"""Chains of stages."""

from dataclasses import dataclass

from plait.types.ids import NodeId
from plait.types.span import LayerSpan


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a route: `span` is what it runs, any contiguous part of what the node holds."""

    node_id: NodeId
    incarnation: int
    span: LayerSpan


Route = tuple[Stage, ...]
"""Stages in order; their spans cover [0, num_layers) without gap or overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """An outcome for programs and people: a stable snake_case word and a sentence."""

    code: str
    message: str
