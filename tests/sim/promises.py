"""What the coordinator promises, checked from its events and effects alone."""

from collections import Counter

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.state import Limits
from plait.types import FinishReason, HeldSpan, NodeId, PipelineId, RequestId

_MAY_FREE = (ev.NodeDetached, ev.Ticked)
"""Events after which promises are counted though nothing came of them."""


class Witness:
    """Hears all that goes in and comes out, and objects. Knows nothing of the core's records."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.incarnation: dict[NodeId, int] = {}
        self.heard_ms: dict[NodeId, int] = {}
        self.held: dict[NodeId, HeldSpan] = {}
        self.draining: set[NodeId] = set()
        self.linked: dict[NodeId, int] = {}
        self.open: dict[PipelineId, fx.OpenRoute] = {}
        self.carrier: dict[RequestId, fx.OpenRoute] = {}
        self.submitted: dict[RequestId, None] = {}
        self.live: dict[RequestId, None] = {}
        self.found: dict[tuple[RequestId, int], ev.RouteFound] = {}
        self.ended: Counter[RequestId] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.finish_reasons: dict[RequestId, FinishReason] = {}
        self.plan_epoch = 0
        self.solving: int | None = None
        self.assigned: dict[NodeId, fx.AssignSpan] = {}

    # What goes in.

    def hear(self, event: ev.Event, now_ms: int) -> None:
        """An event, before the core hears it."""
        match event:
            case ev.NodeAttached():
                if event.incarnation >= self.incarnation.get(event.node_id, 0):
                    is_same = self.incarnation.get(event.node_id) == event.incarnation
                    if not is_same or event.node_id not in self.heard_ms:
                        self.forget(event.node_id)
                        if event.held is not None:
                            self.held[event.node_id] = event.held
                    self.incarnation[event.node_id] = event.incarnation
                    self.heard_ms[event.node_id] = now_ms
                    assigned = self.assigned.get(event.node_id)
                    if assigned is not None and _fits(assigned, event.held):
                        assert event.held is not None
                        self.held[event.node_id] = event.held
            case ev.RequestSubmitted():
                self.submitted[event.request_id] = None
                self.live[event.request_id] = None
            case ev.RouteFound():
                self.found[event.request_id, event.epoch] = event
            case ev.NodeReported() | ev.NodeLoadProgressed() | ev.NodeLoadFailed():
                self._heard(event.node_id, event.incarnation, now_ms)
            case ev.NodeProfiled():
                self._heard(event.profile.node_id, event.incarnation, now_ms)
            case ev.NodeLoaded():
                self._heard(event.node_id, event.incarnation, now_ms)
                assigned = self.assigned.get(event.node_id)
                if (
                    assigned is not None
                    and assigned.incarnation == event.incarnation
                    and _fits(assigned, event.held)
                    and event.node_id in self.heard_ms
                ):
                    self.held[event.node_id] = event.held
            case ev.NodeDetached():
                if self.incarnation.get(event.node_id) == event.incarnation:
                    self.forget(event.node_id)
            case ev.GatewayLinkChanged():
                if event.is_up:
                    if self.linked.get(event.node_id, 0) <= event.incarnation:
                        self.linked[event.node_id] = event.incarnation
                elif self.linked.get(event.node_id) == event.incarnation:
                    del self.linked[event.node_id]
            case ev.NodeDrainAsked():
                if event.incarnation in (None, self.incarnation.get(event.node_id)):
                    self.draining.add(event.node_id)
            case _:
                pass

    def _heard(self, node_id: NodeId, incarnation: int, now_ms: int) -> None:
        if self.incarnation.get(node_id) == incarnation and node_id in self.heard_ms:
            self.heard_ms[node_id] = now_ms

    def forget(self, node_id: NodeId) -> None:
        """The attachment is over: nothing it said counts any more."""
        self.heard_ms.pop(node_id, None)
        self.held.pop(node_id, None)
        self.draining.discard(node_id)
        self.assigned.pop(node_id, None)

    # What comes out.

    def judge(self, event: ev.Event, effects: list[fx.Effect], now_ms: int) -> None:
        """The effects of one event."""
        if not effects and not isinstance(event, _MAY_FREE):
            return
        for effect in effects:
            match effect:
                case fx.OpenRoute():
                    self._opened(effect, now_ms)
                case fx.CloseRoute():
                    is_found = self.found.pop((effect.request_id, effect.epoch), None) is not None
                    is_open = self.open.pop(effect.pipeline_id, None) is not None
                    assert is_open or is_found, "closed twice"
                    carrier = self.carrier.get(effect.request_id)
                    if carrier is not None and carrier.epoch == effect.epoch:
                        del self.carrier[effect.request_id]
                case fx.EndRequest():
                    self._ended(effect, event)
                case fx.NotifyQueued():
                    assert effect.request_id not in self.carrier, "queued but on its way"
                case fx.AssignSpan():
                    self._assigned(effect)
                case fx.SolveAllocation():
                    assert effect.epoch > self.plan_epoch, "a plan's epoch did not grow"
                    self.plan_epoch = effect.epoch
                case fx.EvictNode():
                    if self.incarnation.get(effect.node_id) == effect.incarnation:
                        self.forget(effect.node_id)
                case _:
                    pass
        self._over_commitment()

    def _opened(self, effect: fx.OpenRoute, now_ms: int) -> None:
        request_id = effect.request_id
        assert request_id in self.live, "opened after its end"
        at = 0
        for stage in effect.route:
            node_id = stage.node_id
            assert self.incarnation.get(node_id) == stage.incarnation, "an old incarnation"
            assert node_id in self.heard_ms, "a route over a node that is gone"
            silent_ms = now_ms - self.heard_ms[node_id]
            assert silent_ms < self._limits.suspect_ms, "a route over a silent node"
            assert node_id not in self.draining, "a route over a node that drains"
            assert self.linked.get(node_id) == stage.incarnation, "a route without gateway link"
            held = self.held.get(node_id)
            assert held is not None and held.span.contains(stage.span), "layers it does not hold"
            assert stage.span.start == at, "a gap in a route"
            at = stage.span.end
        self.open[effect.pipeline_id] = effect
        self.carrier[request_id] = effect

    def _over_commitment(self) -> None:
        promised: Counter[NodeId] = Counter()
        for route in self.open.values():
            for stage in route.route:
                promised[stage.node_id] += route.kv_tokens
        for node_id, tokens in promised.items():
            held = self.held.get(node_id)
            assert held is not None, f"{node_id} is gone, but a route over it stays open"
            assert tokens <= held.kv_tokens_max, f"{node_id}: more KV promised than it has"

    def _ended(self, effect: fx.EndRequest, event: ev.Event) -> None:
        request_id = effect.request_id
        self.ended[request_id] += 1
        assert request_id in self.live, "a request ended twice"
        del self.live[request_id]
        self.outcomes[effect.finish_reason] += 1
        self.finish_reasons[request_id] = effect.finish_reason
        if effect.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert isinstance(event, ev.LastTokenSent), "finished without a last token"
        if effect.finish_reason is FinishReason.ERROR:
            assert effect.reason is not None, "an error without a reason"

    def _assigned(self, effect: fx.AssignSpan) -> None:
        node_id = effect.node_id
        assert node_id in self.heard_ms, "assigned a span to a node that is gone"
        busy = {stage.node_id for route in self.open.values() for stage in route.route}
        assert node_id not in busy, "took the layers from under a running request"
        assert node_id not in self.draining, "assigned a span to a node that drains"
        self.assigned[node_id] = effect
        self.held.pop(node_id, None)

    def outcomes_of(self, name: str) -> str:
        """How a request ended, or nothing."""
        return self.finish_reasons.get(RequestId(name), "")

    def check_silence(self, known: list[tuple[NodeId, bool]], now_ms: int) -> None:
        """Nodes the core still has, and whether they serve: none may be silent for long."""
        for node_id, is_serving in known:
            limit_ms = self._limits.lease_ms if is_serving else self._limits.lease_busy_ms
            silent_ms = now_ms - self.heard_ms.get(node_id, now_ms)
            assert silent_ms <= limit_ms + self._limits.lease_ms, "a silent node was kept"


def _fits(assigned: fx.AssignSpan, held: HeldSpan | None) -> bool:
    return held is not None and (held.allocation_epoch, held.model_id, held.span) == (
        assigned.epoch,
        assigned.model_id,
        assigned.span,
    )
