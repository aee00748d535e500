"""What prices are made of, for people who ask afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.selection.candidates import Query
from scheduler.selection.chains import FLOW_CHUNK_TOKENS, Obstacle, Sum, Way


class Evidence(NamedTuple):
    """What was known when a choice was made; by place in the ready chains."""

    query: Query
    sums: tuple[Sum, ...]
    ways: tuple[Way, ...]
    obstacles: Mapping[int, Obstacle]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A price in ms to the last expected token: prompts that wait before, the request's own, its
    new tokens in the batches they join, hops with last miles and uplinks."""

    wait_ms: float
    prefill_ms: float
    decode_ms: float
    hops_ms: float


def parts(evidence: Evidence, c: int) -> Parts:
    """Of one ready chain. They add up to its time to the last expected token."""
    fixed, slowest, rest, per_new, _, waiting = evidence.sums[c]
    once, way_per_new = evidence.ways[c]
    query = evidence.query
    new = max(1, query.new_tokens)
    chunk = min(query.prompt_tokens, FLOW_CHUNK_TOKENS)
    return Parts(
        wait_ms=waiting,
        prefill_ms=fixed - waiting - once + slowest * query.prompt_tokens + rest * chunk,
        decode_ms=(per_new - way_per_new) * new,
        hops_ms=once + way_per_new * new,
    )
