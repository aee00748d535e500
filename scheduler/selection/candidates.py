"""What selection knows about nodes and the request: live figures, turned into linear costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from plait.types import LayerSpan, ModelSpec, NodeId
from scheduler.cost import PREFILL_CHUNK_TOKENS, StageCost

SLOWDOWN_MIN: Final = 0.5
SLOWDOWN_MAX: Final = 50.0
EXACT_MAX: Final = 12
"""Up to so many candidates none is left out."""


Told = tuple[int, int, int, float]
"""A `Load`, or its figures alone: every request tells of each of its stages twice."""


class Load(NamedTuple):
    """What changes with every request: see Candidate."""

    kv_tokens_free: int
    num_requests: int = 0
    queue_tokens: int = 0
    stage_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A serving node. `stage_ms` is its measured decode step, 0 when idle; `kv_tokens_free` what
    the coordinator has not promised to others."""

    node_id: NodeId
    incarnation: int
    span: LayerSpan
    cost: StageCost
    kv_tokens_free: int
    kv_tokens_max: int
    num_requests: int = 0
    queue_tokens: int = 0
    stage_ms: float = 0.0

    @property
    def load(self) -> Load:
        """Its live figures."""
        return Load(self.kv_tokens_free, self.num_requests, self.queue_tokens, self.stage_ms)


@dataclass(frozen=True, slots=True)
class Promise:
    """What is good enough: ms to the first token (what it waited already taken off), ms per token
    after it."""

    ttft_ms: float
    token_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A request. `kv_tokens` slots are needed on every stage; `new_tokens` are expected, not the
    limit; a hop carries `hop_bytes` per token. With a `promise`, ready chains are weighed by how
    much of it they need; without one by the time to the last token."""

    spec: ModelSpec
    prompt_tokens: int
    new_tokens: int
    kv_tokens: int
    hop_bytes: int
    promise: Promise | None = None


@dataclass(frozen=True, slots=True)
class StagePrice:
    """Milliseconds over the request's life: `fixed + layers * per_layer`, `head` on the last."""

    fixed: float
    per_layer: float
    head: float


def price(candidate: Candidate, query: Query) -> StagePrice:
    """Any part of the span: prefill behind what waits, decode in the batch it would join."""
    cost = candidate.cost
    load = candidate.load
    slow = slowdown(cost, len(candidate.span), load)
    steps = max(1, query.new_tokens)
    waiting = max(0, candidate.queue_tokens)
    fixed = (1 + query.prompt_tokens / PREFILL_CHUNK_TOKENS + steps) * cost.overhead_ms
    per_layer = (query.prompt_tokens + waiting) * cost.prefill_layer_ms_per_token
    per_layer += steps * step_layer_ms(cost, load)
    return StagePrice(fixed * slow, per_layer * slow, steps * cost.head_ms * slow)


def step_layer_ms(cost: StageCost, load: Told) -> float:
    """A layer's part of a decode step, in the batch that the request would join."""
    _, num_requests, _, _ = load
    return cost.layer_ms + num_requests * cost.layer_ms_per_extra


def slowdown(cost: StageCost, num_layers: int, load: Told) -> float:
    """How much slower the node is than it measured itself: its live step against the model."""
    _, num_requests, _, stage_ms = load
    if num_requests < 1 or not stage_ms > 0.0:
        return 1.0
    ratio = stage_ms / max(cost.decode_ms(num_layers, num_requests), 1e-6)
    return min(SLOWDOWN_MAX, max(SLOWDOWN_MIN, ratio))


def prune(
    candidates: Sequence[Candidate], prices: Sequence[StagePrice], per_span: int
) -> list[int]:
    """Indices of the `per_span` cheapest holders of each distinct span, in order."""
    groups: dict[LayerSpan, list[tuple[float, int]]] = {}
    for index, candidate in enumerate(candidates):
        own = prices[index]
        total = own.fixed + len(candidate.span) * own.per_layer
        groups.setdefault(candidate.span, []).append((total, index))
    kept: list[int] = []
    for entries in groups.values():
        entries.sort()
        kept += [index for _, index in entries[:per_span]]
    return sorted(kept)
