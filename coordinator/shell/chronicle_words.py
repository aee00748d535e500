"""What events and effects say to an operator: a kind, a tone and a sentence without names. Pure."""

from dataclasses import dataclass
from typing import Final

from coordinator.core import effects as fx
from coordinator.core import events as ev
from plait.types import LayerSpan
from scheduler.allocation.shortage import gib

TEXT_CHARS_MAX: Final = 400
KINDS: Final = ("node", "load", "hop", "plan", "request")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One entry, before it has a number and a time."""

    kind: str
    tone: str
    text: str
    node_id: str = ""
    other_id: str = ""
    request_id: str = ""


def of_event(event: ev.Event) -> Said | None:
    """None for what happens all the time: heartbeats, measurements, progress, tokens."""
    match event:
        case ev.NodeDrainAsked():
            return _node(event.node_id, "warn", f"is to leave: {event.reason}")
        case ev.NodeDrained():
            return _node(event.node_id, "calm", "has nothing left to do and leaves")
        case ev.NodeDetached():
            return _node(event.node_id, "warn", "its control stream has ended")
        case ev.NodeAttached():
            return _attached(event)
        case ev.NodeProfiled():
            profile = event.profile
            device = profile.device_name or profile.device_kind
            lent = gib(profile.memory_bytes)
            return _node(profile.node_id, "ok", f"has measured itself: {device}, lends {lent}")
        case ev.NodeLoaded() | ev.NodeLoadFailed():
            return _loaded(event)
        case ev.HopBroke() | ev.NeighbourMeasured():
            return _hop(event)
        case ev.AllocationSolved():
            return _plan(event)
        case ev.ReplanAsked():
            return Said(kind="plan", tone="calm", text="the operator asked for a plan")
        case ev.RouteBroke():
            return Said(
                kind="request",
                tone="warn",
                text=f"its chain broke after {event.num_generated} tokens: {event.reason.message}",
                node_id=event.node_id or "",
                request_id=event.request_id,
            )
        case _:
            return None


def of_effect(effect: fx.NodeEffect | fx.RequestEffect) -> Said | None:
    """None for what is ordered all the time."""
    match effect:
        case fx.AssignSpan():
            why = f": {effect.reason}" if effect.reason else ""
            text = f"is to load {_layers(effect.span)} of {effect.model_id}{why}"
            return Said(kind="load", tone="busy", text=text, node_id=effect.node_id)
        case fx.UnassignSpan():
            text = "stands by: the plan needs its layers no more"
            return Said(kind="load", tone="calm", text=text, node_id=effect.node_id)
        case fx.EvictNode():
            again = "" if effect.may_rejoin else "; it may not come back by itself"
            return _node(effect.node_id, "bad", f"is put out: {effect.reason.message}{again}")
        case fx.EndRequest():
            if effect.reason is None:
                return None
            return Said(
                kind="request",
                tone="bad",
                text=f"has failed: {effect.reason.message}",
                request_id=effect.request_id,
            )
        case _:
            return None


def _node(node_id: str, tone: str, text: str) -> Said:
    return Said(kind="node", tone=tone, text=text, node_id=node_id)


def _attached(event: ev.NodeAttached) -> Said:
    if event.paused:
        return _node(event.node_id, "calm", f"is here, paused by its owner: {event.paused}")
    if event.held is not None:
        text = f"is back with {_layers(event.held.span)} of {event.held.model_id}"
        return _node(event.node_id, "ok", text)
    return _node(event.node_id, "ok", "has joined")


def _loaded(event: ev.NodeLoaded | ev.NodeLoadFailed) -> Said:
    if isinstance(event, ev.NodeLoaded):
        text = f"holds {_layers(event.held.span)} of {event.held.model_id}"
        return Said(kind="load", tone="ok", text=text, node_id=event.node_id)
    text = f"could not load: {event.reason.message}"
    return Said(kind="load", tone="bad", text=text, node_id=event.node_id)


def _hop(event: ev.HopBroke | ev.NeighbourMeasured) -> Said | None:
    if isinstance(event, ev.NeighbourMeasured):
        if event.is_reachable:
            return None
        text = "cannot reach its neighbour"
    else:
        text = f"has lost its stream to its neighbour: {event.reason}"
    return Said(
        kind="hop", tone="warn", text=text, node_id=event.node_id, other_id=event.neighbour_id
    )


def _plan(event: ev.AllocationSolved) -> Said | None:
    plan = event.allocation
    if plan is None:
        why = event.reason.message if event.reason is not None else "the solver said nothing"
        return Said(kind="plan", tone="bad", text=f"no plan #{event.epoch}: {why}")
    return Said(
        kind="plan",
        tone="ok",
        text=(
            f"plan #{event.epoch}: {len(plan.placements)} nodes, "
            f"{plan.objective_tokens_per_s:.1f} tokens/s, {plan.moved_nodes} moved "
            f"({plan.solver}, {plan.status}, {plan.solve_ms} ms)"
        ),
    )


def _layers(span: LayerSpan) -> str:
    last = span.end - 1
    return f"layer {last}" if span.start == last else f"layers {span.start}\u2013{last}"
