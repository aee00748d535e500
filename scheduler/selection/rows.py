"""Nodes as rows of coefficients, and which rows can never be the cheapest of their group.

What a node's load does not change is worked out once (`Base`); news of a load is then a handful of
multiplications, because a request reserves on every stage and each of them is news.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from plait.types import LayerSpan
from scheduler.cost import PREFILL_CHUNK_TOKENS, StageCost
from scheduler.selection.candidates import Told
from scheduler.selection.groups import INFINITE

Row = tuple[float, float, float, int]
"""Fixed ms, ms per prompt token, ms per new token, free KV slots."""

Paced = tuple[float, float, float, float, float]
"""Of a node as quick as it is now, without its load: fixed ms, ms per prompt token, ms per new
token alone, what each further sequence adds to those; and what paces a chain, the slower of compute
and uplink, in ms per prompt token."""

KV_CAP_TOKENS: Final = 1 << 15
"""Room beyond this makes no node better than another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a node pays for where it stands, whatever it computes. Milliseconds."""

    mile_ms: float
    coordinator_rtt_ms: float
    sent_ms_per_token: float


class Base(NamedTuple):
    """A span on a node without its load. `*_place_ms` are hops and uplink, `prefill_ms` is per
    prompt token, `step_ms` a decode step alone, `extra_ms` what each further sequence adds."""

    fixed_place_ms: float
    prompt_place_ms: float
    step_place_ms: float
    overhead_ms: float
    prefill_ms: float
    chunked_ms: float
    step_ms: float
    extra_ms: float
    sent_ms: float


def base(cost: StageCost, span: LayerSpan, num_layers: int, place: Place) -> Base:
    """Compute, half of each hop's last mile on either side, and the uplink of what is sent on.

    Hops happen once with the prompt and once with each new token; the way back with each new
    token; the coordinator is half a round trip from the first and from the last.
    """
    is_first, is_last = span.start == 0, span.end == num_layers
    half_ms = place.mile_ms / 2
    fixed = per_prompt = per_step = 0.0
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
    prefill_ms = len(span) * cost.prefill_layer_ms_per_token
    return Base(
        fixed_place_ms=fixed,
        prompt_place_ms=per_prompt,
        step_place_ms=per_step,
        overhead_ms=cost.overhead_ms,
        prefill_ms=prefill_ms,
        chunked_ms=prefill_ms + cost.overhead_ms / PREFILL_CHUNK_TOKENS,
        step_ms=cost.overhead_ms + len(span) * cost.layer_ms + (cost.head_ms if is_last else 0.0),
        extra_ms=len(span) * cost.layer_ms_per_extra,
        sent_ms=0.0 if is_last else place.sent_ms_per_token,
    )


def paced(own: Base, slow: float) -> Paced:
    """The span on a node that is `slow` times as slow as it measured itself.

    Chunks follow each other along a chain, so its slowest part sets the pace of a prompt.
    """
    fixed, prompt, step, overhead, prefill, chunked, step_ms, extra, sent = own
    return (
        fixed + overhead * slow,
        prompt + chunked * slow,
        step + step_ms * slow,
        extra * slow,
        max(prefill * slow, sent),
    )


def row(own: Base, load: Told, slow: float, now: Paced) -> Row:
    """As loaded now, for a request alone: all that waits is run before it, and its tokens are
    decoded in the batch it would join."""
    fixed, per_prompt, per_new, extra, _ = now
    kv_tokens_free, num_requests, queue_tokens, _ = load
    waiting = max(0, queue_tokens) * own.prefill_ms * slow
    return (
        fixed + waiting,
        per_prompt,
        per_new + num_requests * extra,
        min(KV_CAP_TOKENS, kv_tokens_free),
    )


def per_trip(own: Row) -> Row:
    """What is paid once is a share of a request's trips, the new tokens are all others: so of a
    row's cost per trip only the difference between both has to be multiplied."""
    fixed, per_prompt, per_new, free = own
    return fixed - per_new, per_prompt, per_new, free


def costs_of(rows: Sequence[Row], need: int, share: float, prompt: float) -> list[float]:
    """Of rows `per_trip`, infinite where room is short."""
    return [f * share + p * prompt + s if kv >= need else INFINITE for f, p, s, kv in rows]


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
