"""A request's trace: what spans there are, whose they are, and that no word is the client's."""

import dataclasses

import pytest
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from coordinator.config import tracing_of
from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.view import NetworkView
from coordinator.shell.tracing.otel import OtelSink, resource_of, traces_url
from coordinator.shell.tracing.story import Savings
from coordinator.shell.tracing.traces import TracedEvents, TracedRequests, Traces
from plait.clock import ManualClock
from plait.errors import ConfigError
from plait.types import (
    FinishReason,
    GuessTotals,
    LayerSpan,
    ModelId,
    NodeId,
    PipelineId,
    Reason,
    RequestId,
    Stage,
)
from plait.wire.trace_context import TraceParent
from tests.unit.core.stories import Story, only
from tests.unit.dashboard.fakes import network_view, node_view

R = RequestId("r1")
PARENT = TraceParent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "vendor=x")
NODES = (node_view(0, (0, 2)), node_view(1, (2, 4)))
A, B = (
    Stage(NodeId(node.node_id), 1, LayerSpan(2 * at, 2 * at + 2)) for at, node in enumerate(NODES)
)
C = Stage(NodeId("gone"), 1, LayerSpan(0, 2))
BUSY = Reason(code="kv_full", message="all KV is in use")


class Doors:
    """The log and the actor behind; `Traces` in front of both, an exporter at the end."""

    def __init__(self, parent: TraceParent | None = None, savings: Savings | None = None) -> None:
        self.clock, self.passed = ManualClock(), list[object]()
        self.exporter = InMemorySpanExporter()
        self.sink = OtelSink(self.exporter, clock=self.clock, resource=Resource.create({}))
        self.traces = Traces(
            self.sink,
            origin=lambda _: (parent, 0),
            savings=lambda _: savings or Savings(),
            views=self,
            clock=self.clock,
        )
        self.events, self.requests = (
            TracedEvents(self.traces, self),
            TracedRequests(self.traces, self),
        )

    def view(self) -> NetworkView:
        return dataclasses.replace(network_view(), nodes=NODES)

    def append(self, now_ms: int, event: ev.Event) -> None:
        self.passed.append(event)

    def perform_request(self, effect: fx.RequestEffect) -> None:
        self.passed.append(effect)

    def at(self, now_ms: int, event: ev.Event, *effects: fx.RequestEffect) -> None:
        """The core hears `event` at `now_ms` and needs 2 ms to decide."""
        self.clock.advance(now_ms - self.clock.monotonic_ms())
        self.events.append(now_ms, event)
        self.clock.advance(2)
        for effect in effects:
            self.requests.perform_request(effect)

    def spans(self) -> dict[str, list[ReadableSpan]]:
        self.sink.close()
        found: dict[str, list[ReadableSpan]] = {}
        for span in sorted(self.exporter.get_finished_spans(), key=lambda s: s.start_time or 0):
            found.setdefault(span.name, []).append(span)
        return found


def submitted() -> ev.RequestSubmitted:
    return ev.RequestSubmitted(
        request_id=R,
        model_id=ModelId("m"),
        prompt_tokens=7,
        max_new_tokens=9,
        key_id="key-of-somebody",
    )


def opens(epoch: int, *route: Stage) -> fx.OpenRoute:
    return fx.OpenRoute(
        request_id=R,
        epoch=epoch,
        pipeline_id=PipelineId(epoch),
        model_id=ModelId("m"),
        route=route,
        addresses=(),
        kv_tokens=16,
    )


def closes(epoch: int, reason: FinishReason) -> fx.CloseRoute:
    return fx.CloseRoute(
        request_id=R, epoch=epoch, pipeline_id=PipelineId(epoch), route=(A, B), finish_reason=reason
    )


def ends(reason: FinishReason, why: Reason | None = None) -> fx.EndRequest:
    return fx.EndRequest(request_id=R, finish_reason=reason, reason=why)


def lasts(span: ReadableSpan) -> tuple[int, int]:
    """Start and end, in ms of the coordinator's clock."""
    assert span.start_time is not None and span.end_time is not None
    offset = ManualClock().unix_ms() - ManualClock().monotonic_ms()
    return span.start_time // 10**6 - offset, span.end_time // 10**6 - offset


def test_a_request_that_waits_breaks_and_ends() -> None:
    guesses = GuessTotals(trips=6, guessed=5, accepted=3)
    doors = Doors(PARENT, Savings(cached_tokens=4, guesses=guesses))
    doors.at(10, submitted(), fx.NotifyQueued(request_id=R, position=3, reason=BUSY))
    doors.at(50, ev.Ticked(), opens(1, A, B))
    doors.at(60, ev.RouteOpened(request_id=R, epoch=1))
    doors.at(100, ev.FirstTokenSent(request_id=R, epoch=1))
    broke = ev.RouteBroke(
        request_id=R,
        epoch=1,
        node_id=None,
        reason=Reason(code="gone", message="x"),
        num_generated=4,
    )
    doors.at(200, broke, closes(1, FinishReason.ERROR))
    doors.at(210, ev.Ticked(), opens(2, C, B))
    doors.at(220, ev.RouteOpened(request_id=R, epoch=2))
    doors.at(240, ev.FirstTokenSent(request_id=R, epoch=2))
    last = ev.LastTokenSent(request_id=R, epoch=2, finish_reason=FinishReason.STOP, num_generated=9)
    doors.at(340, last, closes(2, FinishReason.STOP), ends(FinishReason.STOP))
    assert len(doors.passed) == 15
    spans = doors.spans()
    assert {name: [lasts(span) for span in found] for name, found in spans.items()} == {
        "plait.request": [(0, 342)],
        "queue": [(0, 50), (200, 210)],
        "select": [(50, 52), (210, 212)],
        "open": [(52, 60), (212, 220)],
        "prefill": [(60, 100), (220, 240)],
        "decode": [(100, 200), (240, 340)],
        "hop 0": [(100, 200), (240, 340)],
        "hop 1": [(100, 200), (240, 340)],
        "end": [(340, 342)],
    }
    root = spans["plait.request"][0]
    assert root.parent is not None and root.context is not None
    assert f"{root.context.trace_id:032x}-{root.parent.span_id:016x}" == PARENT.parent[3:52]
    assert root.context.trace_state.get("vendor") == "x"
    assert dict(root.attributes or {}) == {
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.output_tokens": 9,
        "plait.guesses.checked": 5,
        "plait.guesses.right": 3,
        "gen_ai.response.finish_reasons": ("stop",),
        "plait.request_id": "r1",
        "plait.service_class": "interactive",
        "plait.num_routes": 2,
        "plait.ttft_ms": 100,
        "plait.route": ("gone 0-1", "lab-4090 2-3"),
    }
    first, second = spans["decode"]
    assert first.status.description == "gone" and second.status.status_code is StatusCode.UNSET
    assert [dict(d.attributes or {})["plait.decode.tokens"] for d in (first, second)] == [4, 5]
    hop = dict(spans["hop 1"][0].attributes or {})
    assert hop == {
        "plait.hop": 1,
        "plait.node.id": NODES[1].node_id,
        "plait.node.name": "lab-4090",
        "plait.layers.first": 2,
        "plait.layers.last": 3,
        "plait.stage_ms": 6.1,
        "plait.next.rtt_ms": 8.4,
    }
    assert "key-of-somebody" not in "".join(s.to_json() for all_ in spans.values() for s in all_)


def test_a_refusal_and_a_client_that_leaves() -> None:
    doors = Doors()
    doors.at(10, submitted(), ends(FinishReason.ERROR, Reason(code="queue_full", message="busy")))
    doors.at(20, submitted(), opens(1, A, B))
    cancel = ev.RequestCancelled(request_id=R, num_generated=0)
    cancelled = FinishReason.CANCELLED
    doors.at(30, cancel, closes(1, cancelled), ends(cancelled))
    doors.at(40, cancel, ends(cancelled))  # late: its trace is out
    spans = doors.spans()
    refused, left = spans["plait.request"]
    assert refused.parent is None and refused.status.description == "queue_full"
    assert left.status.status_code is StatusCode.UNSET
    unknown = "gen_ai.usage.cache_read.input_tokens", "plait.guesses.checked"
    assert not set(unknown) & set(left.attributes or {})
    assert lasts(spans["open"][0]) == (22, 30) and "prefill" not in spans


def test_what_runs_when_the_process_ends_is_told_and_a_found_route_is() -> None:
    doors = Doors()
    found = ev.RouteFound(request_id=R, epoch=3, route=(A, B), kv_tokens=9, is_running=True)
    doors.at(10, submitted())
    doors.at(20, found)
    doors.at(30, ev.FirstTokenSent(request_id=R, epoch=3))
    doors.traces.stop()
    spans = doors.spans()
    assert lasts(spans["decode"][0]) == (30, 32) and lasts(spans["resume"][0]) == (30, 30)
    assert "gen_ai.response.finish_reasons" not in dict(spans["plait.request"][0].attributes or {})


def test_where_traces_go() -> None:
    named = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}
    assert tracing_of(None, {}) == (False, None)
    assert tracing_of("http://c:4318", {}) == (True, "http://c:4318")
    assert tracing_of(None, named) == (True, None)
    assert tracing_of(None, named | {"OTEL_SDK_DISABLED": "true"}) == (False, None)
    assert tracing_of(None, named | {"OTEL_TRACES_EXPORTER": "none"}) == (False, None)
    with pytest.raises(ConfigError, match="--otlp-endpoint"):
        tracing_of("c:4318", {})
    assert traces_url("http://c:4318/") == "http://c:4318/v1/traces"
    assert traces_url("http://c/otel/v1/traces") == "http://c/otel/v1/traces"
    own = resource_of("net", "1", {})
    assert own.attributes[SERVICE_NAME] == "plait-coordinator"


class TracedStory(Story):
    """A real core between the doors."""

    def __init__(self, doors: Doors) -> None:
        super().__init__()
        self.doors = doors

    def tell(self, *events: ev.Event) -> list[fx.Effect]:
        caused: list[fx.Effect] = []
        for event in events:
            effects = self.core.handle(event, self.now_ms)
            requests = [effect for effect in effects if isinstance(effect, fx.RequestEffect)]
            self.doors.at(self.now_ms, event, *requests)
            self.now_ms = self.doors.clock.monotonic_ms()
            caused += effects
        return caused


def test_what_the_core_does_of_itself_when_a_node_is_lost() -> None:
    doors = Doors()
    story = TracedStory(doors)
    story.start("a", "b", memory_mib=2_000)
    (opened,) = only(story.submit("r1"), fx.OpenRoute)
    request_id, first = RequestId("r1"), opened.route[0].node_id
    story.tell(ev.RouteOpened(request_id=request_id, epoch=1))
    story.now_ms += 100
    story.tell(ev.FirstTokenSent(request_id=request_id, epoch=1))
    story.now_ms += 400
    story.tell(ev.NodeDetached(node_id=first, incarnation=1))
    story.wait(1_000, beating=tuple({"a", "b"} - {first}))
    story.finish("r1", epoch=2)
    spans = doors.spans()
    assert len(spans["plait.request"]) == 1
    assert [len(spans[name]) for name in ("select", "open", "prefill", "decode")] == [2, 2, 2, 2]
    first_decode, second_decode = spans["decode"]
    assert first_decode.status.description == "route_broken"
    assert second_decode.status.status_code is StatusCode.UNSET
    starts, ends_ = zip(*(lasts(span) for all_ in spans.values() for span in all_), strict=True)
    root = lasts(spans["plait.request"][0])
    assert root == (min(starts), max(ends_))
    assert all(start <= end for start, end in zip(starts, ends_, strict=True))
