"""Whether a request is served now, waits and for what, or is refused for good."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from plait.types import LayerSpan, Reason, missing_spans
from scheduler.cost import Links
from scheduler.selection.candidates import Candidate, Query
from scheduler.selection.shortest import Choice, IsBlocked, select_route


class Verdict(StrEnum):
    """What to do with a request."""

    NOW = "now"
    QUEUE = "queue"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """`choice` is set with NOW, `reason` with the others."""

    verdict: Verdict
    choice: Choice | None = None
    reason: Reason | None = None


def admit(
    candidates: Sequence[Candidate],
    query: Query,
    links: Links,
    *,
    is_blocked: IsBlocked | None = None,
) -> Admission:
    """Decide about one request over the nodes that may be chosen now.

    Queues for "layers_missing" (named), "no_path" (every chain has a broken hop) or "kv_full";
    refuses with "request_too_large" what no chain of these nodes can ever hold.
    """
    choice = select_route(candidates, query, links, is_blocked=is_blocked)
    if choice is not None:
        return Admission(verdict=Verdict.NOW, choice=choice)
    num_layers = query.spec.num_layers
    missing = missing_spans([c.span for c in candidates], num_layers)
    if missing:
        return _queue("layers_missing", missing_message(query.spec.model_id, missing))
    able = [c for c in candidates if c.kv_tokens_max >= query.kv_tokens]
    if missing_spans([c.span for c in able], num_layers):
        return _refuse(candidates, query)
    idle = [replace(c, kv_tokens_free=c.kv_tokens_max) for c in able]
    if select_route(idle, query, links, is_blocked=is_blocked) is None:
        return _queue("no_path", f"nodes of {query.spec.model_id} cannot reach each other now")
    return _queue(
        "kv_full",
        f"the KV cache of {query.spec.model_id} is full: {query.kv_tokens} tokens are needed on "
        "every stage; waiting for others to finish",
    )


def _queue(code: str, message: str) -> Admission:
    return Admission(verdict=Verdict.QUEUE, reason=Reason(code=code, message=message))


def _refuse(candidates: Sequence[Candidate], query: Query) -> Admission:
    fits = _largest_request(candidates, query.spec.num_layers)
    return Admission(
        verdict=Verdict.REFUSE,
        reason=Reason(
            code="request_too_large",
            message=(
                f"prompt and answer need {query.kv_tokens} tokens of KV cache on every stage, the "
                f"nodes of {query.spec.model_id} hold {fits}: shorten the prompt or max_tokens"
            ),
        ),
    )


def _largest_request(candidates: Sequence[Candidate], num_layers: int) -> int:
    """The most KV tokens that holders of every layer offer."""
    for tokens in sorted({c.kv_tokens_max for c in candidates}, reverse=True):
        able = [c.span for c in candidates if c.kv_tokens_max >= tokens]
        if not missing_spans(able, num_layers):
            return tokens
    return 0


def missing_message(model_id: str, missing: Sequence[LayerSpan]) -> str:
    """Names the layers that nobody serves."""
    layers = ", ".join(str(span) for span in missing)
    return f"no serving node holds layers {layers} of {model_id}; waiting for nodes to join"
