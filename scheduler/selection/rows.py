"""Nodes as rows of coefficients, and which rows can never be the cheapest of their group."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.selection.candidates import Candidate, linear, slowdown

Row = tuple[float, float, float, int]
"""Fixed ms, ms per prompt token, ms per new token, free KV slots."""

Flow = tuple[float, float, float]
"""How prompts pass a node, in ms: what stands before it now, the part of that in its row's fixed
cost, and per token the slower of its compute and its uplink."""

KV_CAP_TOKENS: Final = 1 << 15
"""Room beyond this makes no node better than another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a node pays for where it stands, whatever it computes. Milliseconds."""

    mile_ms: float
    coordinator_rtt_ms: float
    sent_ms_per_token: float


def row(candidate: Candidate, num_layers: int, place: Place) -> Row:
    """Compute, half of each hop's last mile on either side, and the uplink of what is sent on.

    Hops happen once with the prompt and once with each new token; the way back with each new
    token; the coordinator is half a round trip from the first and from the last.
    """
    span = candidate.span
    is_first, is_last = span.start == 0, span.end == num_layers
    cost = linear(candidate, is_last=is_last)
    fixed, per_prompt, per_step = cost.fixed, cost.per_prompt, cost.per_step
    half_ms = place.mile_ms / 2
    if is_first:
        fixed += place.coordinator_rtt_ms / 2
    else:
        fixed += half_ms
        per_step += half_ms
    if is_last:
        fixed += place.coordinator_rtt_ms / 2
    else:
        fixed += half_ms
        per_step += half_ms
        per_prompt += place.sent_ms_per_token
        per_step += place.sent_ms_per_token
    if is_first != is_last:
        per_step += half_ms
    return (fixed, per_prompt, per_step, min(KV_CAP_TOKENS, candidate.kv_tokens_free))


def flow(candidate: Candidate, num_layers: int, place: Place) -> Flow:
    """Chunks follow each other along a chain, so its slowest part sets the pace of a prompt."""
    cost, queue_tokens = candidate.cost, max(0, candidate.queue_tokens)
    compute_ms = len(candidate.span) * cost.prefill_layer_ms_per_token * slowdown(candidate)
    is_last = candidate.span.end == num_layers
    per_token = max(compute_ms, 0.0 if is_last else place.sent_ms_per_token)
    return (queue_tokens * per_token, queue_tokens * compute_ms, per_token)


def front(rows: Sequence[Row], indices: Sequence[int]) -> list[int]:
    """The indices that no other beats in everything at once, in the order of their fixed cost."""
    order = sorted(indices, key=lambda i: (rows[i][0], rows[i][1], rows[i][2], -rows[i][3], i))
    kept: list[int] = []
    for i in order:
        _, per_prompt, per_step, free = rows[i]
        for j in kept:
            other = rows[j]
            if other[1] <= per_prompt and other[2] <= per_step and other[3] >= free:
                break
        else:
            kept.append(i)
    return kept
