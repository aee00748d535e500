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


def refusal(
    node: NodeData, sender: NodeId | None, opened: StageOpen, prompt: Sequence[int]
) -> Refusal | None:
    """Why this Open must not be served, or None."""
    return (
        _ticket_refusal(node, sender, opened)
        or _node_refusal(node, opened)
        or _span_refusal(node, opened)
        or _prompt_refusal(node, opened, prompt)
    )


def _ticket_refusal(node: NodeData, sender: NodeId | None, opened: StageOpen) -> Refusal | None:
    index, stages = opened.stage_index, opened.stages
    if not 0 <= index < len(stages):
        return _DENIED, _reason("ticket_wrong_hop", f"the ticket has no stage {index}")
    hop = stages[index]
    if hop.node_id != node.node_id:
        return _DENIED, _reason("ticket_wrong_hop", f"stage {index} of the ticket is another node")
    if hop.incarnation not in (0, node.incarnation):
        return _DENIED, _reason("ticket_stale", "the ticket is for an earlier start of this node")
    expected = None if index == 0 else stages[index - 1].node_id
    if sender != expected:
        return _DENIED, _reason("ticket_wrong_hop", "the ticket came from a node outside its chain")
    if len({stage.node_id for stage in stages}) != len(stages):
        return _DENIED, _reason("ticket_invalid", "a node stands twice in the ticket's chain")
    if opened.ticket_id in node.tickets_seen:
        return _DENIED, _reason("ticket_replayed", "the ticket was used before")
    return None


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
    if len(node.tickets_seen) >= node.limits.tickets_seen_max:
        return StatusCode.RESOURCE_EXHAUSTED, _reason(
            "tickets_full", "too many live tickets; try again in a minute"
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
    at = 0
    for stage in opened.stages:
        if stage.span.start != at:
            return _DENIED, _reason("ticket_invalid", "the ticket's spans leave a gap or overlap")
        at = stage.span.end
    if at != spec.num_layers:
        return _DENIED, _reason("ticket_invalid", f"the ticket's spans end before layer {at}")
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
