"""Makes the coordinator's parts and introduces them to each other."""

import importlib.metadata
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from grpc import aio

from coordinator.config import AUTO, CoordinatorConfig
from coordinator.core.core import Core
from coordinator.core.state import Limits
from coordinator.gateway.gateway import Gateway, GatewayConfig
from coordinator.gateway.generate import GenerateLimits
from coordinator.gateway.relay import Relay
from coordinator.models import ServedModel
from coordinator.ports import RequestActor
from coordinator.shell.admin import AdminService
from coordinator.shell.authority import Authority
from coordinator.shell.chronicle import Chronicle, NotedEvents, NotedNodes, NotedRequests
from coordinator.shell.control import ControlService, Offer
from coordinator.shell.enrol import Enrolment, EnrolmentService
from coordinator.shell.inbox import EventInbox
from coordinator.shell.journal import Journal
from coordinator.shell.key_weights import WeighedKeys
from coordinator.shell.lifetimes import LifetimeKeeper
from coordinator.shell.live_views import LiveViews
from coordinator.shell.loop import EventLog, Loop
from coordinator.shell.preflight import Preflight
from coordinator.shell.preview import Previewer
from coordinator.shell.recorder import Recorder
from coordinator.shell.solve import Solver
from coordinator.shell.store import Store
from coordinator.shell.telemetry_hub import TelemetryHub
from coordinator.shell.tracing.story import Savings
from coordinator.shell.tracing.traces import SpanSink, TracedEvents, TracedRequests, Traces
from coordinator.shell.view_cache import ViewCache
from coordinator.shell.weight_copies import WeightCopies
from coordinator.shell.weights import WeightsService, measured_ways
from plait.clock import Clock, SteadyClock
from plait.config import models_dir
from plait.types import DType, ModelId, ModelSpec, RequestId
from plait.wire.trace_context import TraceParent
from plait.wire.v1 import admin_pb2_grpc, control_pb2_grpc, weights_pb2_grpc

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The coordinator, taken apart. `main` serves and runs these."""

    inbox: EventInbox
    views: LiveViews
    control: ControlService
    weights: WeightsService
    gateway: Gateway
    solver: Solver
    journal: Journal
    loop: Loop
    recorder: Recorder
    lifetimes: LifetimeKeeper
    chronicle: Chronicle
    previewer: Previewer
    traces: Traces | None
    enrolment: EnrolmentService
    admin: AdminService

    def add_to_public_port(self, server: aio.Server) -> None:
        """Doors for clients, operators and volunteers that enrol."""
        self.gateway.add_to_public_port(server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self.admin, server)
        control_pb2_grpc.add_EnrolmentServiceServicer_to_server(self.enrolment, server)

    def add_to_node_port(self, server: aio.Server) -> None:
        """Doors for enrolled nodes."""
        control_pb2_grpc.add_ControlServiceServicer_to_server(self.control, server)
        weights_pb2_grpc.add_WeightsServiceServicer_to_server(self.weights, server)
        self.gateway.add_to_node_port(server)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the parts are made of. `public_address` (host:port) is what volunteers dial. `spans`
    takes traces of requests, where somebody wants them."""

    config: CoordinatorConfig
    models: Sequence[ServedModel]
    authority: Authority
    store: Store
    telemetry: TelemetryHub
    clock: Clock
    public_address: str
    node_port: int
    spans: SpanSink | None = None

    @property
    def specs(self) -> tuple[ModelSpec, ...]:
        return tuple(model.spec for model in self.models)

    @property
    def wire_dtype(self) -> DType:
        """Of hops for which the core chooses none."""
        return fixed_dtype(self.config) or DType.FLOAT32


def assemble(around: Surroundings) -> Parts:
    """All parts, none of them running yet."""
    clock, store, authority = around.clock, around.store, around.authority
    seed = secrets.randbits(63)
    core = core_of(around.config, around.models, authority.network_id, seed)
    inbox = EventInbox()
    keys = WeighedKeys(store.keys, inbox)
    cached = ViewCache(core, clock)
    enrolment = Enrolment(ca=authority.ca, tokens=store.tokens, nodes=store.nodes)
    ticket_clock = SteadyClock(clock)  # one, for nodes hear of the time by which they check tickets
    control = _control(around, inbox, enrolment, ticket_clock)
    gateway = _gateway(around, inbox, cached, keys, ticket_clock)
    views = _live(cached, gateway.relay)
    solver = Solver(inbox)
    lifetimes = LifetimeKeeper(store.sessions)
    journal = Journal(
        around.config.state_dir / "journal", start_unix_ms=clock.unix_ms(), note=f"seed={seed}"
    )
    chronicle = Chronicle(clock)
    requests: RequestActor = NotedRequests(chronicle, gateway.relay)
    heard: EventLog = NotedEvents(chronicle, journal)
    traces = _traces(around, gateway, cached)
    if traces is not None:
        requests, heard = TracedRequests(traces, requests), TracedEvents(traces, heard)
    return Parts(
        inbox=inbox,
        views=views,
        control=control,
        weights=_weights(around, control, cached, chronicle),
        gateway=gateway,
        solver=solver,
        journal=journal,
        loop=Loop(
            core,
            inbox,
            clock,
            nodes=NotedNodes(chronicle, control),
            requests=requests,
            solver=solver,
            lifetimes=lifetimes,
            journal=heard,
        ),
        chronicle=chronicle,
        previewer=Previewer(core, inbox),
        traces=traces,
        lifetimes=lifetimes,
        recorder=Recorder(views, store.history, clock, store.routes),
        enrolment=_enrolment_service(around, enrolment, cached),
        admin=AdminService(
            views=views,
            keys=keys,
            tokens=store.tokens,
            nodes=store.nodes,
            routes=store.routes,
            inbox=inbox,
            public_address=around.public_address,
        ),
    )


def core_of(
    config: CoordinatorConfig, models: Sequence[ServedModel], network_id: str, seed: int
) -> Core:
    """The core that such a coordinator runs; a journal replays into one like it."""
    return Core(
        tuple(model.spec for model in models),
        limits=Limits(
            kv_tokens_min=config.kv_tokens_min,
            queue_max=config.queue_max,
            wait_limit_ms=config.request_wait_ms,
            first_plan_nodes_min=config.nodes_min,
            first_plan_wait_ms=config.plan_wait_ms,
        ),
        rng=random.Random(seed),
        network_id=network_id,
        software_version=importlib.metadata.version("plait"),
        wire_dtype=fixed_dtype(config),
        digests={model.spec.model_id: model.source.digest or "" for model in models},
        demand=_by_id(config, models, dict(config.demand)),
        replicas_min=_by_id(config, models, dict(config.replicas_min)),
    )


def fixed_dtype(config: CoordinatorConfig) -> DType | None:
    """Of all hops; None where each has what suits its link."""
    return None if config.wire_dtype == AUTO else DType(config.wire_dtype)


def _by_id(
    config: CoordinatorConfig, models: Sequence[ServedModel], named: Mapping[str, N]
) -> dict[ModelId, N]:
    """What was said of models by the names that the operator gave, by what they are called."""
    pairs = zip(config.models, models, strict=True)
    return {model.spec.model_id: named[name] for name, model in pairs if name in named}


def _live(views: ViewCache, relay: Relay) -> LiveViews:
    return LiveViews(views, relay.progress, relay.guesses, relay.prompts)


def _control(
    around: Surroundings, inbox: EventInbox, enrolment: Enrolment, ticket_clock: Clock
) -> ControlService:
    telemetry = around.telemetry
    offer = Offer(
        models=tuple((model.spec, model.source) for model in around.models),
        telemetry_url=telemetry.url,
        telemetry_credentials=telemetry.credentials,
        telemetry_prefix=telemetry.prefix,
    )
    admit = around.store.nodes.saw
    return ControlService(inbox, offer, enrolment.renew, admit=admit, clock=ticket_clock)


def _enrolment_service(
    around: Surroundings, enrolment: Enrolment, views: ViewCache
) -> EnrolmentService:
    return EnrolmentService(
        enrolment,
        Preflight(
            tokens=around.store.tokens,
            nodes=around.store.nodes,
            specs=around.specs,
            views=views,
            clock=around.clock,
        ),
        ticket_key=around.authority.tickets.public_bytes,
        node_address=f":{around.node_port}",
    )


def _weights(
    around: Surroundings, control: ControlService, views: ViewCache, chronicle: Chronicle
) -> WeightsService:
    return WeightsService(
        WeightCopies([model.source for model in around.models], models_dir()),
        attached=control.addresses,
        round_trips=partial(measured_ways, views),
        clock=around.clock,
        rng=random.SystemRandom(),
        note=chronicle.note,
    )


def _gateway(
    around: Surroundings,
    inbox: EventInbox,
    views: ViewCache,
    keys: WeighedKeys,
    ticket_clock: Clock,
) -> Gateway:
    config = around.config
    limits = GenerateLimits(
        default_max_tokens=config.max_tokens_default, generations_max=config.requests_max
    )
    return Gateway(
        config=GatewayConfig(
            network_id=around.authority.network_id,
            wire_dtype=around.wire_dtype,
            generate=limits,
        ),
        models=around.specs,
        tokenizers={model.spec.model_id: model.tokenizer for model in around.models},
        inbox=inbox,
        views=views,
        keys=keys,
        sign=around.authority.tickets.sign,
        clock=around.clock,
        ticket_clock=ticket_clock,
        new_id=lambda: secrets.token_hex(12),
    )


def _traces(around: Surroundings, gateway: Gateway, views: ViewCache) -> Traces | None:
    def origin(request_id: RequestId) -> tuple[TraceParent | None, int] | None:
        generation = gateway.relay.generation(request_id)
        return None if generation is None else (generation.trace, generation.submitted_ms)

    def savings(request_id: RequestId) -> Savings:
        cached_tokens = gateway.relay.prompts.requests.get(request_id)
        guesses = gateway.relay.guesses.requests.get(request_id)
        return Savings(cached_tokens=cached_tokens, guesses=guesses)

    if around.spans is None:
        return None
    return Traces(around.spans, origin=origin, savings=savings, views=views, clock=around.clock)
