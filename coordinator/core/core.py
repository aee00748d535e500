"""The coordinator's deterministic core: event in, effects out. No clock, no IO, no asyncio."""

from collections.abc import Mapping
from random import Random
from typing import assert_never, cast

from coordinator.core import draining, neighbours, nodes, planning, requests, resuming
from coordinator.core import events as ev
from coordinator.core.demand import Demand
from coordinator.core.dispatch import dispatch
from coordinator.core.effects import Effect
from coordinator.core.state import CoreState, Limits
from coordinator.core.timers import NodeKey, TimerKey, TimerKind
from coordinator.core.view import NetworkView
from coordinator.core.view_builder import build_view
from plait.types import DType, ModelId, ModelSpec, PipelineId, RequestId


class Core:
    """One writer, one method. Same events, times and seed give the same effects."""

    def __init__(
        self,
        models: tuple[ModelSpec, ...],
        limits: Limits,
        rng: Random,
        *,
        wire_dtype: DType | None = DType.FLOAT32,
        digests: Mapping[ModelId, str] | None = None,
        demand: Mapping[ModelId, float] | None = None,
        replicas_min: Mapping[ModelId, int] | None = None,
        network_id: str = "",
        software_version: str = "",
    ) -> None:
        """`digests` are the expected sha256 of the models' weights where the operator knows them;
        for others the first node that loads a model sets it. `wire_dtype` None: what suits each
        link. `demand` is what models are asked for
        in proportion (None: as observed), `replicas_min` the chains that each is to have."""
        self._network_id = network_id
        self._software_version = software_version
        self.state = CoreState(
            models,
            limits,
            rng,
            wire_dtype=wire_dtype,
            digests=digests if digests is not None else {},
            demand=Demand([spec.model_id for spec in models], demand, replicas_min),
        )

    def handle(self, event: ev.Event, now_ms: int) -> list[Effect]:
        """Apply one event at `now_ms` (monotonic ms) and return the effects, in order."""
        state = self.state
        state.now_ms = max(state.now_ms, now_ms)
        if state.started_ms is None:
            state.started_ms = state.now_ms
        state.out = []
        while (due := state.timers.pop_due(state.now_ms)) is not None:
            self._expire(*due)
        self._apply(event)
        dispatch(state)
        return state.out

    def next_deadline_ms(self) -> int | None:
        """When to call `handle(Ticked())` at the latest, or None."""
        return self.state.timers.next_ms()

    def view(self, now_ms: int) -> NetworkView:
        """What people see. Reads only."""
        return build_view(self.state, now_ms, self._network_id, self._software_version)

    def _apply(self, event: ev.Event) -> None:
        state = self.state
        match event:
            case ev.NodeAttached():
                nodes.attached(state, event)
            case ev.NodeProfiled():
                nodes.profiled(state, event)
            case ev.NodeReported():
                nodes.reported(state, event)
            case ev.NodeLoadProgressed():
                nodes.load_progressed(state, event)
            case ev.NodeLoaded():
                nodes.loaded(state, event)
            case ev.NodeLoadFailed():
                nodes.load_failed(state, event)
            case ev.NodeDrainAsked():
                draining.drain_asked(state, event)
            case ev.NodeDrained():
                draining.drained(state, event)
            case ev.NodeDetached():
                nodes.detached(state, event)
            case ev.GatewayLinkChanged():
                nodes.gateway_link_changed(state, event)
            case ev.NeighbourMeasured():
                neighbours.neighbour_measured(state, event)
            case ev.HopBroke():
                neighbours.hop_broke(state, event)
            case ev.AllocationSolved():
                planning.allocation_solved(state, event)
            case ev.RequestSubmitted():
                requests.submitted(state, event)
            case ev.RouteFound():
                resuming.route_found(state, event)
            case ev.RequestCancelled():
                requests.cancelled(state, event)
            case ev.RouteOpened():
                requests.route_opened(state, event)
            case ev.RouteBroke():
                requests.route_broke(state, event)
            case ev.FirstTokenSent():
                requests.first_token(state, event)
            case ev.LastTokenSent():
                requests.last_token(state, event)
            case ev.SessionsRecalled():
                for node in event.nodes:
                    state.lifetimes.restore(node.node_id, node.sessions_ms)
            case ev.KeyWeighed():
                state.fairness.weigh(event.key_id, event.weight)
            case ev.ReplanAsked():
                planning.replan_asked(state)
            case ev.Ticked():
                pass
            case _:
                assert_never(event)

    def _expire(self, kind: TimerKind, key: TimerKey) -> None:
        state = self.state
        match kind:
            case TimerKind.LEASE:
                nodes.lease_due(state, cast("NodeKey", key))
            case TimerKind.SOLVE:
                planning.plan_due(state)
            case TimerKind.SOLVE_LIMIT:
                planning.solve_overdue(state, cast("int", key))
            case TimerKind.RETRY:
                planning.retry_due(state, cast("NodeKey", key))
            case TimerKind.LOAD_STALL:
                planning.load_stalled(state, cast("NodeKey", key))
            case TimerKind.DRAIN_LIMIT:
                draining.drain_overdue(state, cast("NodeKey", key))
            case TimerKind.DRAIN_MOVE:
                draining.move_due(state, cast("NodeKey", key))
            case TimerKind.OPEN_LIMIT:
                requests.open_overdue(state, cast("PipelineId", key))
            case TimerKind.PREFILL_LIMIT:
                requests.prefill_overdue(state, cast("PipelineId", key))
            case TimerKind.WAIT_LIMIT:
                requests.wait_overdue(state, cast("RequestId", key))
            case TimerKind.REQUEST_LIMIT:
                requests.request_overdue(state, cast("RequestId", key))
            case TimerKind.DISPATCH:
                state.must_dispatch = True
            case _:
                assert_never(kind)
