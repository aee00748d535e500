"""How a request looks to people."""

from coordinator.core.state import Decided, RequestRecord
from coordinator.core.view import ChainView, DecisionView, HopView, RequestView
from plait.types import FinishReason, Reason
from scheduler.selection.decision import Priced, priced, why


def request_view(
    request: RequestRecord,
    now_ms: int,
    finish_reason: FinishReason | None = None,
    reason: Reason | None = None,
) -> RequestView:
    """A snapshot; `finish_reason` is set where the request has just ended."""
    age_ms = now_ms - request.submitted_ms
    ttft_ms = None
    tokens_per_s = 0.0
    if request.first_token_ms is not None:
        ttft_ms = request.first_token_ms - request.submitted_ms
        decode_ms = now_ms - request.first_token_ms
        if request.num_generated > 1 and decode_ms > 0:
            tokens_per_s = 1e3 * (request.num_generated - 1) / decode_ms
    said = reason if reason is not None else request.waits_for
    return RequestView(
        request_id=request.request_id,
        model_id=request.model_id,
        key_id=request.key_id,
        state=request.state,
        epoch=request.epoch,
        prompt_tokens=request.prompt_tokens,
        max_new_tokens=request.max_new_tokens,
        num_generated=request.num_generated,
        age_ms=age_ms,
        ttft_ms=ttft_ms,
        total_ms=age_ms if finish_reason is not None else None,
        tokens_per_s=tokens_per_s,
        route=tuple(
            HopView(node_id=stage.node_id, span=(stage.span.start, stage.span.end))
            for stage in request.last_route
        ),
        finish_reason=finish_reason if finish_reason is not None else "",
        reason=said.message if said is not None else "",
        decisions=tuple(_decision_view(d, request.submitted_ms) for d in request.decisions),
    )


def _decision_view(decided: Decided, submitted_ms: int) -> DecisionView:
    at_ms, decision, reason = decided.at_ms - submitted_ms, decided.decision, decided.reason
    if decision is None:
        return DecisionView(
            at_ms=at_ms,
            verdict="queue" if reason is not None else "now",
            why=reason.message if reason is not None else "found by looking at all nodes",
            ttft_ms=None,
            token_ms=None,
            considered=tuple(
                ChainView(
                    chain=tuple(chain.node_ids),
                    total_ms=None,
                    note=obstacle.why,
                    obstacle=obstacle.node_id or "",
                )
                for chain, obstacle in decided.refused
            ),
            epoch=decided.epoch,
        )
    return DecisionView(
        at_ms=at_ms,
        verdict="now",
        why=why(decision),
        ttft_ms=round(decision.ttft_ms, 1),
        token_ms=round(decision.token_ms, 2),
        considered=tuple(_chain_view(each) for each in priced(decision)),
        epoch=decided.epoch,
        prefix_tokens=decision.held_tokens,
    )


def _chain_view(one: Priced) -> ChainView:
    parts = one.parts
    obstacle = one.obstacle.node_id if one.obstacle is not None else None
    return ChainView(
        chain=tuple(one.nodes),
        total_ms=round(one.total_ms, 1) if one.total_ms is not None else None,
        note=one.note,
        wait_ms=round(parts.wait_ms, 1) if parts is not None else None,
        prefill_ms=round(parts.prefill_ms, 1) if parts is not None else None,
        decode_ms=round(parts.decode_ms, 1) if parts is not None else None,
        hops_ms=round(parts.hops_ms, 1) if parts is not None else None,
        obstacle=obstacle or "",
    )
