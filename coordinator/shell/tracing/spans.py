"""A request's story as spans. Pure: what is sent, without the library that sends it.

Never a prompt, an answer, a client's own words or a key: ids, counts, times and codes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from coordinator.core.view import NodeView
from coordinator.shell.tracing.story import Attempt, Savings, Story
from plait.types import FinishReason

Value = str | int | float | bool | list[str]
ROOT: Final = "plait.request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Monotonic ms of the coordinator. `error` is a code; empty where all was well."""

    name: str
    start_ms: int
    end_ms: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""
    children: tuple["Span", ...] = ()


def spans_of(story: Story, savings: Savings, nodes: Mapping[str, NodeView], now_ms: int) -> Span:
    """The whole trace; a request that still runs is cut off at `now_ms`."""
    end_ms = story.ended_ms if story.ended_ms is not None else now_ms
    asked, reason = story.submitted, story.finish_reason
    attributes: dict[str, Value] = {
        "gen_ai.request.model": asked.model_id,
        "gen_ai.request.max_tokens": asked.max_new_tokens,
        "gen_ai.usage.input_tokens": asked.prompt_tokens,
        "gen_ai.usage.output_tokens": story.num_generated,
        "plait.request_id": asked.request_id,
        "plait.service_class": str(asked.slo),
        "plait.num_routes": len(story.attempts),
    }
    attributes |= _saved(savings)
    if reason is not None:
        attributes["gen_ai.response.finish_reasons"] = [str(reason)]
    ttft_ms = next((a.first_token_ms for a in story.attempts if a.first_token_ms is not None), None)
    if ttft_ms is not None:
        attributes["plait.ttft_ms"] = ttft_ms - story.began_ms
    if story.attempts:
        attributes["plait.route"] = _route(story.attempts[-1], nodes)
    is_failed = reason is FinishReason.ERROR
    return Span(
        name=ROOT,
        start_ms=story.began_ms,
        end_ms=end_ms,
        attributes=attributes,
        error=(story.error or "failed") if is_failed else "",
        children=tuple(_children(story, nodes, end_ms)),
    )


def _saved(savings: Savings) -> dict[str, Value]:
    found: dict[str, Value] = {}
    if savings.cached_tokens is not None:
        found["gen_ai.usage.cache_read.input_tokens"] = savings.cached_tokens
    if savings.guesses is not None:
        found["plait.guesses.checked"] = savings.guesses.guessed
        found["plait.guesses.right"] = savings.guesses.accepted
    return found


def _children(story: Story, nodes: Mapping[str, NodeView], end_ms: int) -> Iterator[Span]:
    for at, attempt in enumerate(story.attempts):
        yield _waiting(story, attempt.queued_ms, attempt.chosen_from_ms, is_first=at == 0)
        yield from _steps(attempt, nodes, end_ms)
    last = story.attempts[-1] if story.attempts else None
    if last is None:
        yield _waiting(story, story.queued_ms, end_ms, is_first=True)
    elif last.error and story.queued_ms < end_ms:
        yield _waiting(story, story.queued_ms, end_ms, is_first=False)
    elif last.over_ms is not None:
        yield Span(name="end", start_ms=last.over_ms, end_ms=end_ms)


def _waiting(story: Story, start_ms: int, end_ms: int, *, is_first: bool) -> Span:
    attributes: dict[str, Value] = {}
    if is_first:
        start_ms = story.began_ms
        if story.position_max:
            attributes = {
                "plait.queue.position": story.position_max,
                "plait.queue.reason": story.waits_for,
            }
    return Span(name="queue", start_ms=start_ms, end_ms=end_ms, attributes=attributes)


def _steps(attempt: Attempt, nodes: Mapping[str, NodeView], end_ms: int) -> Iterator[Span]:
    """Selection, opening, prefill, decode; what broke off ends where the chain did."""
    over_ms = attempt.over_ms if attempt.over_ms is not None else end_ms
    marks = (
        ("open", attempt.chosen_ms, attempt.opened_ms),
        ("prefill", attempt.opened_ms, attempt.first_token_ms),
        ("decode", attempt.first_token_ms, None),
    )
    route: dict[str, Value] = {"plait.epoch": attempt.epoch, "plait.route": _route(attempt, nodes)}
    name = "resume" if attempt.is_found else "select"
    yield Span(
        name=name, start_ms=attempt.chosen_from_ms, end_ms=attempt.chosen_ms, attributes=route
    )
    for name, start_ms, until_ms in marks:
        if start_ms is None:
            continue
        is_last = until_ms is None
        stop_ms = over_ms if until_ms is None else until_ms
        yield Span(
            name=name,
            start_ms=start_ms,
            end_ms=max(start_ms, stop_ms),
            attributes=_decoded(attempt, stop_ms) if name == "decode" else {},
            error=attempt.error if is_last else "",
            children=tuple(_hops(attempt, nodes, stop_ms)) if name == "decode" else (),
        )
        if is_last:
            return


def _decoded(attempt: Attempt, over_ms: int) -> dict[str, Value]:
    num = max(0, attempt.num_after - attempt.num_before)
    attributes: dict[str, Value] = {"plait.decode.tokens": num}
    if num > 1 and attempt.first_token_ms is not None:
        attributes["plait.decode.token_ms"] = (over_ms - attempt.first_token_ms) / (num - 1)
    return attributes


def _hops(attempt: Attempt, nodes: Mapping[str, NodeView], over_ms: int) -> Iterator[Span]:
    """Every stage of the ring, over all of its decode: what a trip spends there on average, by the
    node's last word."""
    start_ms = attempt.first_token_ms
    if start_ms is None:
        return
    for at, stage in enumerate(attempt.route):
        attributes: dict[str, Value] = {
            "plait.hop": at,
            "plait.node.id": stage.node_id,
            "plait.layers.first": stage.span.start,
            "plait.layers.last": stage.span.end - 1,
        }
        node = nodes.get(stage.node_id)
        if node is not None:
            following = attempt.route[(at + 1) % len(attempt.route)].node_id
            trip_ms = dict(node.neighbour_rtt_ms).get(following)
            attributes |= {"plait.node.name": node.display_name, "plait.stage_ms": node.stage_ms}
            if trip_ms is not None:
                attributes["plait.next.rtt_ms"] = trip_ms
        name = f"hop {at}"
        yield Span(
            name=name, start_ms=start_ms, end_ms=max(start_ms, over_ms), attributes=attributes
        )


def _route(attempt: Attempt, nodes: Mapping[str, NodeView]) -> list[str]:
    """As `alpha 0-11`, the first stage first."""
    names = {
        stage.node_id: nodes[stage.node_id].display_name
        for stage in attempt.route
        if stage.node_id in nodes
    }
    return [
        f"{names.get(stage.node_id, stage.node_id)} {stage.span.start}-{stage.span.end - 1}"
        for stage in attempt.route
    ]
