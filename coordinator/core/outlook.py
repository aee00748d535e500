"""Whether a model can be served: which layers nobody holds, what is on its way, what helps.

The one source of what requests, status, dashboard and readiness say about it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.core.machines import NodeState
from coordinator.core.planning import uncovered
from coordinator.core.state import CoreState, Loss
from plait.types import LayerSpan, ModelSpec, missing_spans
from scheduler.allocation.shortage import (
    Shortage,
    gap_shortage,
    gib,
    layers_text,
    widest_dtype,
)

INVITE = "`plait token create` makes the line that lets one in."


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """`missing` are layers that no node serves, `gaps` those of them that none even loads.

    `hope` says what is on its way ("" for nothing). `short_bytes` is 0 without gaps. `code` is a
    refusal's reason.
    """

    missing: tuple[LayerSpan, ...]
    gaps: tuple[LayerSpan, ...] = ()
    hope: str = ""
    short_bytes: int = 0
    advice: str = ""
    lack: str = ""
    code: str = "span_unavailable"


def outlook(state: CoreState, spec: ModelSpec) -> Outlook:
    """How things stand for a model. O(nodes); changes nothing."""
    gaps = tuple(uncovered(state).get(spec.model_id, ()))
    missing = _unserved(state, spec)
    if not gaps:
        return _loading(state, spec, missing)
    hope, until_ms = _hope(state, spec, gaps)
    known = state.planning.shortages.get(spec.model_id)
    shortage = known if known is not None else _gaps_alone(state, spec, gaps)
    need = f"{gib(shortage.short_bytes)} are missing"
    advice = f"{shortage.advice} {INVITE}"
    what = layers_text(gaps, spec.num_layers)
    if not hope:
        lack = f"{what}, {need}. {advice}"
    elif until_ms is None:
        advice, lack = f"{hope[0].upper()}{hope[1:]}; wait.", f"{what}; {hope}."
    else:
        advice = f"{hope[0].upper()}{hope[1:]}. If not: {advice}"
        lack = f"{what}, {need}. {advice}"
    # Where somebody has held them, what lacks is that node: a client may try again.
    is_short = known is not None and not hope and not _lost(state, spec, gaps)
    return Outlook(
        missing=missing,
        gaps=gaps,
        hope=hope,
        short_bytes=shortage.short_bytes,
        advice=advice,
        lack=lack,
        code="not_enough_memory" if is_short else "span_unavailable",
    )


def is_hopeless(state: CoreState, spec: ModelSpec) -> bool:
    """Whether no chain can serve the model, and nothing is on its way that would change it."""
    gaps = uncovered(state).get(spec.model_id)
    return bool(gaps) and not _hope(state, spec, tuple(gaps or ()))[0]


def _unserved(state: CoreState, spec: ModelSpec) -> tuple[LayerSpan, ...]:
    serving = [
        n.span
        for n in state.nodes.values()
        if n.state is NodeState.SERVING and n.model_id == spec.model_id and n.span is not None
    ]
    return tuple(missing_spans(serving, spec.num_layers))


def _loading(state: CoreState, spec: ModelSpec, missing: tuple[LayerSpan, ...]) -> Outlook:
    if not missing:
        return Outlook(missing=())
    count = sum(
        n.state is NodeState.LOADING and n.model_id == spec.model_id for n in state.nodes.values()
    )
    nodes = "1 node is" if count == 1 else f"{count} nodes are"
    layers = ", ".join(str(span) for span in missing)
    return Outlook(
        missing=missing,
        hope=f"{nodes} loading",
        advice=f"{nodes} loading; wait.",
        lack=f"layers {layers} of {spec.num_layers} are not served yet; {nodes} loading.",
    )


def _hope(state: CoreState, spec: ModelSpec, gaps: Sequence[LayerSpan]) -> tuple[str, int | None]:
    """What may close the gaps without anybody's doing, and until when that may be."""
    joining = [n for n in state.nodes.values() if n.state is NodeState.JOINING and not n.paused]
    measuring = sum(n.profile is None for n in joining)
    if measuring:
        return ("1 node is" if measuring == 1 else f"{measuring} nodes are") + " measuring", None
    planning = state.planning
    if planning.problem is not None or planning.solve_at_ms is not None:
        is_first = planning.in_force is None and planning.error is None
        expected = state.limits.first_plan_nodes_min
        if is_first and len(joining) < expected:
            return f"the first plan waits for {expected} nodes, {len(joining)} are here", None
        return "a plan is being made", None
    resting = [n for n in joining if n.plan_after_ms > state.now_ms]
    if resting:
        first = min(resting, key=lambda n: n.plan_after_ms)
        pause_s = _seconds(first.plan_after_ms - state.now_ms)
        why = f" ({first.failure_code.replace('_', ' ')})" if first.failure_code else ""
        return f"a node that could not load{why} tries again in {pause_s} s", None
    return _return_hope(state, spec, gaps)


def _return_hope(
    state: CoreState, spec: ModelSpec, gaps: Sequence[LayerSpan]
) -> tuple[str, int | None]:
    """Who was here lately may come back."""
    rejoin_ms = state.limits.rejoin_wait_ms
    lost = [n for n in _lost(state, spec, gaps) if n.lost_ms + rejoin_ms > state.now_ms]
    if lost:
        last = max(lost, key=lambda loss: loss.lost_ms)
        ago_s = (state.now_ms - last.lost_ms) // 1000
        who = f"the holder of layers {last.span}, {last.name}, left {ago_s} s ago and may come back"
        return who, last.lost_ms + rejoin_ms
    planning = state.planning
    until_ms = (state.started_ms or 0) + state.limits.return_wait_ms
    if planning.in_force is None and planning.error is None and until_ms > state.now_ms:
        return "the coordinator has just started, and nodes may be coming back", until_ms
    return "", None


def _lost(state: CoreState, spec: ModelSpec, gaps: Sequence[LayerSpan]) -> list[Loss]:
    """Nodes that held some of these layers, went without a word and have not come back."""
    return [
        loss
        for loss in state.losses.values()
        if loss.model_id == spec.model_id
        and any(loss.span.start < gap.end and gap.start < loss.span.end for gap in gaps)
    ]


def _gaps_alone(state: CoreState, spec: ModelSpec, gaps: Sequence[LayerSpan]) -> Shortage:
    """Where no planner was asked: newcomers that fill the gaps as they are."""
    profiles = [n.profile for n in state.nodes.values() if n.profile is not None]
    kv_tokens = max(1, min(state.limits.kv_tokens_min, spec.context_tokens_max))
    return gap_shortage(spec, gaps, widest_dtype(profiles), kv_tokens)


def _seconds(duration_ms: int) -> int:
    return -(-duration_ms // 1000)
