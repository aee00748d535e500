"""Where traces of requests go, when they are asked for: the extra `otel` is imported only then."""

import asyncio
import contextlib
import importlib
import importlib.metadata
from collections.abc import AsyncIterator

from coordinator.config import CoordinatorConfig
from coordinator.shell.tracing.traces import SpanSink
from plait.clock import Clock


@contextlib.asynccontextmanager
async def span_sink(
    config: CoordinatorConfig, network_id: str, clock: Clock
) -> AsyncIterator[SpanSink | None]:
    """The collector that the operator named; None where none was."""
    if not config.is_traced:
        yield None
        return
    otel = importlib.import_module("coordinator.shell.tracing.otel")
    sink = otel.collector_sink(
        config.otlp_endpoint,
        network_id=network_id,
        version=importlib.metadata.version("plait"),
        clock=clock,
    )
    try:
        yield sink
    finally:
        await asyncio.to_thread(sink.close)
