"""One snapshot for all viewers: the network, its telemetry, and how fast the counters move."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from coordinator.core.view import NetworkView, NodeView, RequestView
from coordinator.dashboard.flows import Flow, FlowMeter
from coordinator.dashboard.history import NodeHistory
from coordinator.dashboard.shelf import RequestShelf
from coordinator.ports import (
    KeptRequest,
    NodeTelemetry,
    TelemetryHealth,
    TelemetryReader,
    ViewSource,
)
from plait.clock import Clock

REFRESH_MS: Final = 900
"""A little less than a page's tick."""

HISTORY_MAX: Final = 60
HISTORY_STEP_MS: Final = 1_000
RATE_WINDOW_MS: Final = 5_000
NAMES_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`tokens_per_s` is the network's rate over the last 5 s; `history` the last minute's rates.

    `names` are the display names by node id, of nodes that have left too; `flows` who feeds whom.
    """

    view: NetworkView
    names: dict[str, str]
    telemetry: dict[str, NodeTelemetry]
    health: TelemetryHealth | None
    tokens_per_s: float
    history: tuple[float, ...]
    flows: tuple[Flow, ...] = ()
    by_id: dict[str, NodeView] = field(default_factory=dict)

    def name(self, node_id: str) -> str:
        """What people call a node."""
        return self.names.get(node_id) or node_id

    def request(self, request_id: str) -> RequestView | None:
        """One that is open or ended lately."""
        return next((r for r in self.view.requests if r.request_id == request_id), None)


class SharedSnapshot:
    """Computed when somebody looks, at most about once a second, however many look.

    What is drawn from a snapshot is drawn once as well: `drawn` keeps the markup by name.
    """

    def __init__(
        self, *, views: ViewSource, telemetry: TelemetryReader | None, clock: Clock
    ) -> None:
        self._views = views
        self._telemetry = telemetry
        self._clock = clock
        self._made_ms: int | None = None
        self._snapshot: Snapshot | None = None
        self._drawn: dict[Hashable, str] = {}
        self._flows = FlowMeter()
        self.nodes = NodeHistory()
        self.shelf = RequestShelf()
        self._names: dict[str, str] = {}
        self._points: deque[tuple[int, int]] = deque(maxlen=64)
        self._rates: deque[float] = deque(maxlen=HISTORY_MAX)
        self._rated_ms = 0

    def recall(self, ended: Sequence[KeptRequest]) -> None:
        """Take in what ended before this process began, the newest first."""
        names: dict[str, str] = {}
        for kept in reversed(ended):
            names.update(kept.names)
        self._names = names | self._names
        self.shelf.note(kept.request for kept in reversed(ended))

    def current(self) -> Snapshot:
        """The shared snapshot, refreshed when it is older than REFRESH_MS."""
        now_ms = self._clock.monotonic_ms()
        is_fresh = self._made_ms is not None and now_ms - self._made_ms < REFRESH_MS
        if self._snapshot is None or not is_fresh:
            self._snapshot = self._make(now_ms)
            self._made_ms = now_ms
            self._drawn.clear()
        return self._snapshot

    def drawn(self, name: Hashable, draw: Callable[[Snapshot], str]) -> str:
        """Markup of the current snapshot, drawn at most once."""
        snapshot = self.current()
        if name not in self._drawn:
            self._drawn[name] = draw(snapshot)
        return self._drawn[name]

    def _make(self, now_ms: int) -> Snapshot:
        view = self._views.view()
        tokens_per_s = self._rate(now_ms, view.counters.tokens_generated)
        if len(self._points) > 1 and now_ms - self._rated_ms >= HISTORY_STEP_MS:
            self._rates.append(tokens_per_s)
            self._rated_ms = now_ms
        reader = self._telemetry
        self._names |= {node.node_id: node.display_name for node in view.departed}
        self._names |= {node.node_id: node.display_name or node.node_id for node in view.nodes}
        while len(self._names) > NAMES_MAX:
            del self._names[next(iter(self._names))]
        self.nodes.note(view.nodes, now_ms)
        self.shelf.note(view.requests)
        return Snapshot(
            view=view,
            names=dict(self._names),
            telemetry={} if reader is None else {str(n.node_id): n for n in reader.nodes()},
            health=None if reader is None else reader.health(),
            tokens_per_s=tokens_per_s,
            history=tuple(self._rates),
            flows=self._flows.note(view.requests, now_ms),
            by_id={node.node_id: node for node in view.nodes},
        )

    def _rate(self, now_ms: int, tokens: int) -> float:
        if self._points and tokens < self._points[-1][1]:
            self._points.clear()  # the coordinator's counters began afresh
        self._points.append((now_ms, tokens))
        while len(self._points) > 2 and now_ms - self._points[1][0] >= RATE_WINDOW_MS:
            self._points.popleft()
        then_ms, tokens_then = self._points[0]
        return (tokens - tokens_then) * 1_000 / (now_ms - then_ms) if now_ms > then_ms else 0.0
