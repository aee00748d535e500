"""Whether an Open may become a session: everything that is known before anything is reserved."""

from collections.abc import Sequence
from typing import Final

from node.core.events import OpenRefused
from node.core.machines import NodeState
from node.core.messages import StageOpen, StatusCode
from node.core.state import NodeData
from plait.types import ModelSpec, NodeId, Reason

Refusal = tuple[StatusCode, Reason]

_DENIED: Final = StatusCode.PERMISSION_DENIED
_INVALID: Final = StatusCode.INVALID_ARGUMENT


def refused(
    sender: NodeId | None, opened: StageOpen, code: StatusCode, reason: Reason
) -> OpenRefused:
    """The refusal of an Open whose ticket was genuine."""
    return OpenRefused(
        sender=sender,
        request_id=opened.request_id,
        epoch=opened.epoch,
        stage_index=opened.stage_index,
        code=code,
        reason=reason,
    )


def refusal(node: NodeData, opened: StageOpen, prompt: Sequence[int]) -> Refusal | None:
    """Why this Open must not be served, or None."""
    return (
        _node_refusal(node, opened)
        or _span_refusal(node, opened)
        or _prompt_refusal(node, opened, prompt)
    )


def _node_refusal(node: NodeData, opened: StageOpen) -> Refusal | None:
    if node.state is NodeState.DRAINING:
        return StatusCode.UNAVAILABLE, _reason("node_draining", "this node is leaving")
    if node.state is not NodeState.SERVING:
        return StatusCode.UNAVAILABLE, _reason("span_not_held", "this node holds no layers now")
    is_new = opened.request_id not in node.sessions
    if is_new and len(node.sessions) >= node.limits.sessions_max:
        return StatusCode.RESOURCE_EXHAUSTED, _reason(
            "sessions_full", f"this node has {node.limits.sessions_max} open requests, its most"
        )
    return None


def _span_refusal(node: NodeData, opened: StageOpen) -> Refusal | None:
    held, spec = node.held, node.spec()
    if held is None or spec is None or held.model_id != opened.model_id:
        return StatusCode.UNAVAILABLE, _reason("span_not_held", "this node holds another model")
    span = opened.stages[opened.stage_index].span
    if not held.span.contains(span):
        return StatusCode.UNAVAILABLE, _reason(
            "span_not_held", f"layers {span} were asked for, layers {held.span} are held"
        )
    end = opened.stages[-1].span.end
    if end != spec.num_layers:
        return _DENIED, _reason(
            "ticket_malformed", f"the ticket ends at layer {end} of {spec.num_layers}"
        )
    if len({stage.node_id for stage in opened.stages}) != len(opened.stages):
        return _DENIED, _reason("ticket_malformed", "a node stands twice in the ticket's chain")
    return None


def _prompt_refusal(node: NodeData, opened: StageOpen, prompt: Sequence[int]) -> Refusal | None:
    spec = node.spec()
    limit = opened.kv_tokens if spec is None else min(opened.kv_tokens, spec.context_tokens_max)
    if opened.max_new_tokens < 1:
        return _INVALID, _reason("max_new_tokens_invalid", "max_new_tokens must be at least 1")
    if not 1 <= opened.prompt_tokens <= limit:
        return _INVALID, _reason(
            "prompt_too_long", f"a prompt of {opened.prompt_tokens} does not fit in {limit} slots"
        )
    if opened.stage_index > 0:
        return None
    if len(prompt) != opened.prompt_tokens:
        return _INVALID, _reason(
            "prompt_invalid",
            f"{opened.prompt_tokens} prompt ids were announced, {len(prompt)} came",
        )
    if spec is not None and not _are_token_ids(prompt, spec):
        return _INVALID, _reason(
            "token_id_invalid", f"a prompt id is outside the vocabulary of {spec.vocab_size}"
        )
    return None


def _are_token_ids(ids: Sequence[int], spec: ModelSpec) -> bool:
    return min(ids) >= 0 and max(ids) < spec.vocab_size


def _reason(code: str, message: str) -> Reason:
    return Reason(code=code, message=message)
