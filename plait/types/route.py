"""Chains of stages."""

from dataclasses import dataclass
from typing import Final

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


PREEMPTED: Final = "preempted"
"""Code of a request whose KV on a stage went to an earlier one: it is to be started anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """An outcome for programs and people: a stable snake_case word and a sentence."""

    code: str
    message: str
