"""Prometheus: the snapshot's figures at /metrics, for whoever has an admin key."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from coordinator.core.view import NetworkView
from coordinator.ports import KeyStore, TelemetryReader, ViewSource
from coordinator.shell.latencies import Latencies
from plait.errors import AuthenticationError
from plait.wire.telemetry import PresenceState

COUNTERS: Final = (
    ("requests_submitted", "Requests accepted"),
    ("requests_finished", "Requests that ended as they should"),
    ("requests_failed", "Requests that ended with an error of the network"),
    ("requests_refused", "Requests that asked for what no retry gives"),
    ("requests_cancelled", "Requests whose client went away"),
    ("routes_opened", "Routes opened"),
    ("routes_broken", "Routes that broke"),
    ("tokens_generated", "Tokens generated"),
    ("events_ignored", "Late, duplicate or foreign events"),
    ("nodes_moved", "Nodes that plans told to hold other layers"),
    ("weight_bytes_moved", "Bytes of weights that plans made nodes read"),
    ("weight_bytes_fetched", "Bytes of these that were on no disk of theirs"),
)
NODE_GAUGES: Final = (
    ("kv_tokens_max", "KV slots"),
    ("kv_tokens_reserved", "KV slots promised to requests"),
    ("num_requests", "Open requests"),
    ("stage_ms", "Mean decode step of the stage, milliseconds"),
    ("held_up_ms", "What a step waits until the node's process runs, milliseconds"),
    ("decode_layer_ms", "Measured decode time of one layer, milliseconds"),
    ("coordinator_rtt_ms", "Round trip to the coordinator, milliseconds"),
    ("weight_bytes", "Bytes of parameters in memory"),
)
NODE_COUNTERS: Final = (
    ("tokens_total", "Tokens through the stage"),
    ("sent_bytes_total", "Bytes of frames sent to neighbours"),
    ("frames_dropped_total", "Late, duplicate or foreign frames"),
    ("weights_hub_bytes_total", "Bytes of weights from the hub or the catalogue's package"),
    ("weights_neighbour_bytes_total", "Bytes of weights from neighbours"),
    ("weights_served_bytes_total", "Bytes of weights given to neighbours"),
    ("weights_rejected_total", "Chunks of weights that were wrong"),
    ("weights_refused_total", "Requests for weights that were refused"),
)


GUESSES: Final = (
    ("trips", "Trips round chains: each brings a token and the right guesses before it"),
    ("guessed", "Guessed tokens that went along"),
    ("accepted", "Guessed tokens that were right"),
)

PROMPTS: Final = (
    ("prompt_tokens", "Tokens of prompts that were read"),
    ("cached_prompt_tokens", "Of these, those that chains had from earlier requests"),
)


NODE_GUESSES: Final = (
    *GUESSES,
    ("guessed_by_model", "Of the guessed tokens, those of the draft model"),
    ("accepted_by_model", "Of the right ones, those of the draft model"),
)


class _Collector:
    """Reads the snapshot when Prometheus asks; keeps nothing."""

    def __init__(self, views: ViewSource, telemetry: TelemetryReader | None) -> None:
        self._views = views
        self._telemetry = telemetry

    def collect(self) -> Iterator[Metric]:
        view = self._views.view()
        yield from _of_network(view)
        yield from _of_nodes(view)
        yield from _of_models(view)
        yield from _of_hops(view)
        yield from _of_plan(view)
        if self._telemetry is not None:
            health = self._telemetry.health()
            connected = GaugeMetricFamily(
                "plait_telemetry_connected", "Whether the broker is there"
            )
            connected.add_metric([], float(health.is_connected))
            yield connected
            messages = CounterMetricFamily("plait_telemetry_messages", "Messages that arrived")
            messages.add_metric([], health.messages_total)
            yield messages
            dropped = CounterMetricFamily(
                "plait_telemetry_dropped", "Payloads refused", labels=["reason"]
            )
            for reason, count in health.dropped:
                dropped.add_metric([reason], count)
            yield dropped
            presence = Counter(node.presence for node in self._telemetry.nodes())
            nodes = GaugeMetricFamily(
                "plait_telemetry_nodes", "Nodes by their last presence", labels=["presence"]
            )
            for state in PresenceState:
                nodes.add_metric([state.value], presence[state])
            yield nodes


def metrics_router(
    *,
    views: ViewSource,
    telemetry: TelemetryReader | None,
    keys: KeyStore,
    latencies: Latencies,
) -> APIRouter:
    """`GET /metrics` with `Authorization: Bearer KEY`: 401 without one, 403 for a client's."""
    router = APIRouter(include_in_schema=False)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(views, telemetry))
    tasks = Gauge("plait_tasks", "Tasks of the coordinator's loop", registry=registry)

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        try:
            if scheme.lower() != "bearer" or not secret or len(secret) > 512:
                raise AuthenticationError("no key")
            key = await keys.verify_key(secret.strip())
        except AuthenticationError:
            return Response("an admin key is needed\n", 401, {"www-authenticate": "Bearer"})
        if not key.is_admin:
            return Response("an admin key is needed\n", 403)
        tasks.set(len(asyncio.all_tasks()))
        text = generate_latest(registry) + generate_latest(latencies.registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return router


def _of_network(view: NetworkView) -> Iterator[Metric]:
    for name, description in COUNTERS:
        counter = CounterMetricFamily(f"plait_{name}", description)
        counter.add_metric([], getattr(view.counters, name))
        yield counter
    queued = GaugeMetricFamily("plait_requests_queued", "Requests that wait for a route")
    queued.add_metric([], view.num_queued)
    yield queued


def _of_nodes(view: NetworkView) -> Iterator[Metric]:
    states = GaugeMetricFamily("plait_nodes", "Nodes by state", labels=["state"])
    for state in sorted({node.state for node in view.nodes}):
        states.add_metric([state], sum(node.state == state for node in view.nodes))
    yield states
    labels = ["node_id", "name"]
    gauges = [(n, GaugeMetricFamily(f"plait_node_{n}", d, labels=labels)) for n, d in NODE_GAUGES]
    counters = [
        (n, CounterMetricFamily(f"plait_node_{n}", d, labels=labels)) for n, d in NODE_COUNTERS
    ]
    families: list[tuple[str, GaugeMetricFamily | CounterMetricFamily]] = [*gauges, *counters]
    for name, family in families:
        for node in view.nodes:
            family.add_metric([node.node_id, node.display_name], getattr(node, name))
        yield family
    for name, description in NODE_GUESSES:
        family = CounterMetricFamily(f"plait_node_guesses_{name}", description, labels=labels)
        for node in view.nodes:
            family.add_metric([node.node_id, node.display_name], getattr(node.guesses, name))
        yield family
    yield from _of_draft_models(view)


def _of_draft_models(view: NetworkView) -> Iterator[Metric]:
    drafts = [(n.node_id, n.display_name, n.draft) for n in view.nodes if n.draft is not None]
    labels = ["node_id", "name"]
    states = GaugeMetricFamily(
        "plait_node_draft_model", "1 for what its draft model does", labels=[*labels, "state"]
    )
    failed = CounterMetricFamily(
        "plait_node_draft_failures", "Steps of the draft model that failed", labels=labels
    )
    for node_id, name, draft in drafts:
        states.add_metric([node_id, name, draft.state], 1)
        failed.add_metric([node_id, name], draft.num_failed)
    yield states
    yield failed


def _of_models(view: NetworkView) -> Iterator[Metric]:
    ready = GaugeMetricFamily("plait_model_ready", "Whether it can be served", labels=["model"])
    fewest = GaugeMetricFamily(
        "plait_model_replicas_min", "Replicas of the layer that has fewest", labels=["model"]
    )
    for model in view.models:
        ready.add_metric([model.model_id], float(model.is_ready))
        fewest.add_metric([model.model_id], min(model.replicas_per_layer, default=0))
    yield ready
    yield fewest
    for name, description in PROMPTS:
        family = CounterMetricFamily(f"plait_{name}", description, labels=["model"])
        for model in view.models:
            family.add_metric([model.model_id], getattr(model, name))
        yield family
    for name, description in GUESSES:
        family = CounterMetricFamily(f"plait_guesses_{name}", description, labels=["model"])
        for model in view.models:
            family.add_metric([model.model_id], getattr(model.guesses, name))
        yield family


def _of_hops(view: NetworkView) -> Iterator[Metric]:
    labels = ["node_id", "neighbour_id"]
    rtt = GaugeMetricFamily(
        "plait_hop_rtt_ms", "Measured round trip to a neighbour, milliseconds", labels=labels
    )
    rate = GaugeMetricFamily(
        "plait_hop_bytes_per_second", "Measured rate to a neighbour", labels=labels
    )
    for node in view.nodes:
        for hop in node.hops:
            rtt.add_metric([node.node_id, hop.neighbour_id], hop.rtt_ms)
            if hop.bytes_per_s > 0:
                rate.add_metric([node.node_id, hop.neighbour_id], hop.bytes_per_s)
    yield rtt
    yield rate


def _of_plan(view: NetworkView) -> Iterator[Metric]:
    if view.plan is None:
        return
    for name, description in (
        ("objective", "Tokens/s that the plan in force is reckoned to carry"),
        ("bound", "Tokens/s that no plan could exceed"),
    ):
        family = GaugeMetricFamily(f"plait_plan_{name}_tokens_per_second", description)
        family.add_metric([], getattr(view.plan, f"{name}_tokens_per_s"))
        yield family
    epoch = GaugeMetricFamily("plait_plan_epoch", "Number of the plan in force")
    epoch.add_metric([], view.plan.epoch)
    yield epoch
