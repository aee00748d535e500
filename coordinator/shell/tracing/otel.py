"""Traces to an OpenTelemetry collector, over OTLP/HTTP. Needs the extra `otel`: whoever imports
this module has looked for it."""

import os
import threading
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from coordinator.shell.tracing.spans import Span
from plait.clock import Clock
from plait.wire.trace_context import TRACEPARENT, TRACESTATE, TraceParent

SERVICE: Final = "plait-coordinator"
TRACES_PATH: Final = "/v1/traces"
FLUSH_S: Final = 3.0
_NS_PER_MS: Final = 1_000_000


class OtelSink:
    """A `SpanSink`. Spans wait in a bounded queue for a thread that sends them; a collector that is
    away costs traces, never requests."""

    def __init__(self, exporter: SpanExporter, *, clock: Clock, resource: Resource) -> None:
        self._clock = clock
        # Not the process's global one: what other libraries trace is theirs to send.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._exporter = exporter
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("plait")
        self._propagator = TraceContextTextMapPropagator()

    def send(self, root: Span, parent: TraceParent | None) -> None:
        """Hand a trace to the sending thread."""
        context = Context()
        if parent is not None:
            carrier = {TRACEPARENT: parent.parent, TRACESTATE: parent.state}
            context = self._propagator.extract(carrier, context)
        offset_ms = self._clock.unix_ms() - self._clock.monotonic_ms()
        self._write(root, context, offset_ms, SpanKind.SERVER)

    def _write(self, span: Span, context: Context, offset_ms: int, kind: SpanKind) -> None:
        written = self._tracer.start_span(
            span.name,
            context=context,
            kind=kind,
            attributes=span.attributes,
            start_time=(span.start_ms + offset_ms) * _NS_PER_MS,
        )
        if span.error:
            written.set_attribute("error.type", span.error)
            written.set_status(Status(StatusCode.ERROR, span.error))
        inner = set_span_in_context(written, context)
        for child in span.children:
            self._write(child, inner, offset_ms, SpanKind.INTERNAL)
        written.end(end_time=(span.end_ms + offset_ms) * _NS_PER_MS)

    def close(self) -> None:
        """Send what waits; blocks. Nothing is tried again after FLUSH_S."""
        enough = threading.Timer(FLUSH_S, self._exporter.shutdown)
        enough.start()
        self._provider.shutdown()
        enough.cancel()


def collector_sink(
    endpoint: str | None, *, network_id: str, version: str, clock: Clock
) -> OtelSink:
    """Sends to the collector at `endpoint`, or to the one that OTEL_EXPORTER_OTLP_* name. Headers,
    certificates, sampling and limits are as OTEL_* say."""
    exporter = OTLPSpanExporter(endpoint=None if endpoint is None else traces_url(endpoint))
    return OtelSink(exporter, clock=clock, resource=resource_of(network_id, version, os.environ))


def traces_url(endpoint: str) -> str:
    """A collector's address with the path of traces, where it has no path."""
    has_path = urlsplit(endpoint).path.strip("/")
    return endpoint if has_path else endpoint.rstrip("/") + TRACES_PATH


def resource_of(network_id: str, version: str, env: Mapping[str, str]) -> Resource:
    """Who we are; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have the last word."""
    named = "OTEL_SERVICE_NAME" in env or f"{SERVICE_NAME}=" in env.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    own = {SERVICE_VERSION: version, "plait.network_id": network_id}
    return Resource.create(own if named else own | {SERVICE_NAME: SERVICE})
