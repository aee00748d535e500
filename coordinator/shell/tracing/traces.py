"""Follows every request at the core's doors, and hands its trace on when it has ended."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.view import NetworkView, NodeView
from coordinator.ports import RequestActor, ViewSource
from coordinator.shell.loop import EventLog
from coordinator.shell.tracing.spans import Span, spans_of
from coordinator.shell.tracing.story import Savings, Story
from plait.clock import Clock
from plait.types import RequestId
from plait.wire.trace_context import TraceParent

STORIES_MAX: Final = 8_192
"""Requests followed at a time; of those beyond there are no traces."""

_OF_REQUESTS: Final = (
    ev.RouteFound,
    ev.RequestCancelled,
    ev.RouteOpened,
    ev.RouteBroke,
    ev.FirstTokenSent,
    ev.LastTokenSent,
)
Origin = Callable[[RequestId], tuple[TraceParent | None, int] | None]
"""Whose trace a request belongs to, and since when the gateway has it; None: it is not known."""

SavingsOf = Callable[[RequestId], Savings]
"""What is known of a request's cache and guesses when its trace is written."""


class SpanSink(Protocol):
    """Where traces go. `send` must neither block nor raise; times are monotonic ms."""

    def send(self, root: Span, parent: TraceParent | None) -> None: ...


class Traces:
    """The requests that are open, as stories. One event loop owns it."""

    def __init__(
        self,
        sink: SpanSink,
        *,
        origin: Origin,
        savings: SavingsOf,
        views: ViewSource,
        clock: Clock,
    ) -> None:
        self._sink = sink
        self._origin = origin
        self._savings = savings
        self._views = views
        self._clock = clock
        self._since_ms = 0
        self._stories: dict[RequestId, tuple[Story, TraceParent | None]] = {}
        self._view: NetworkView | None = None
        self._nodes: Mapping[str, NodeView] = {}

    def heard(self, now_ms: int, event: ev.Event) -> None:
        """The core is told something."""
        self._since_ms = now_ms
        if isinstance(event, ev.RequestSubmitted):
            self._begin(event, now_ms)
        elif isinstance(event, _OF_REQUESTS):
            known = self._stories.get(event.request_id)
            if known is not None:
                known[0].heard(event, now_ms)

    def told(self, effect: fx.RequestEffect) -> None:
        """The core has decided something."""
        known = self._stories.get(effect.request_id)
        if known is None:
            return
        story, parent = known
        now_ms = self._clock.monotonic_ms()
        story.told(effect, self._since_ms, now_ms)
        if isinstance(effect, fx.EndRequest):
            del self._stories[effect.request_id]
            self._send(story, parent, now_ms)

    def stop(self) -> None:
        """The process ends: what is open is told as far as it came."""
        now_ms = self._clock.monotonic_ms()
        for story, parent in self._stories.values():
            self._send(story, parent, now_ms)
        self._stories.clear()

    def _begin(self, event: ev.RequestSubmitted, now_ms: int) -> None:
        if event.request_id in self._stories or len(self._stories) >= STORIES_MAX:
            return
        origin = self._origin(event.request_id)
        parent, began_ms = origin if origin is not None else (None, now_ms)
        story = Story(submitted=event, began_ms=min(began_ms, now_ms), queued_ms=now_ms)
        story.num_generated = event.num_generated
        self._stories[event.request_id] = (story, parent)

    def _send(self, story: Story, parent: TraceParent | None, now_ms: int) -> None:
        savings = self._savings(story.submitted.request_id)
        self._sink.send(spans_of(story, savings, self._known_nodes(), now_ms), parent)

    def _known_nodes(self) -> Mapping[str, NodeView]:
        """By id; made once for a view, which lasts for many requests."""
        view = self._views.view()
        if view is not self._view:
            self._view, self._nodes = view, {node.node_id: node for node in view.nodes}
        return self._nodes


class TracedEvents:
    """An `EventLog` in front of another."""

    def __init__(self, traces: Traces, log: EventLog) -> None:
        self._traces = traces
        self._log = log

    def append(self, now_ms: int, event: ev.Event) -> None:
        """As the log does."""
        self._log.append(now_ms, event)
        self._traces.heard(now_ms, event)


class TracedRequests:
    """A `RequestActor` in front of another."""

    def __init__(self, traces: Traces, actor: RequestActor) -> None:
        self._traces = traces
        self._actor = actor

    def perform_request(self, effect: fx.RequestEffect) -> None:
        """As the actor does, after the trace has heard of it: acting may end the request."""
        self._traces.told(effect)
        self._actor.perform_request(effect)
