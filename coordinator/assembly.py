"""Makes the coordinator's parts and introduces them to each other."""

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from grpc import aio

from coordinator.config import CoordinatorConfig
from coordinator.core.core import Core
from coordinator.core.state import Limits
from coordinator.gateway.gateway import Gateway, GatewayConfig
from coordinator.gateway.generate import GenerateLimits
from coordinator.models import ServedModel
from coordinator.shell.admin import AdminService
from coordinator.shell.authority import Authority
from coordinator.shell.control import ControlService, Offer
from coordinator.shell.enrol import Enrolment, EnrolmentService
from coordinator.shell.inbox import EventInbox
from coordinator.shell.journal import Journal
from coordinator.shell.live_views import LiveViews
from coordinator.shell.loop import Loop
from coordinator.shell.recorder import Recorder
from coordinator.shell.solve import Solver
from coordinator.shell.store import Store
from coordinator.shell.telemetry_hub import TelemetryHub
from coordinator.shell.view_cache import ViewCache
from plait.clock import Clock
from plait.types import DType
from plait.wire.v1 import admin_pb2_grpc, control_pb2_grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The coordinator, taken apart. `main` serves and runs these."""

    inbox: EventInbox
    views: LiveViews
    control: ControlService
    gateway: Gateway
    solver: Solver
    journal: Journal
    loop: Loop
    recorder: Recorder
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
        self.gateway.add_to_node_port(server)


def assemble(
    config: CoordinatorConfig,
    models: Sequence[ServedModel],
    *,
    authority: Authority,
    store: Store,
    telemetry: TelemetryHub,
    clock: Clock,
    public_address: str,
    node_port: int,
    software_version: str,
) -> Parts:
    """All parts, none of them running yet. `public_address` is what volunteers dial."""
    seed = secrets.randbits(63)
    specs = tuple(model.spec for model in models)
    wire_dtype = DType(config.wire_dtype)
    core = Core(
        specs,
        limits=Limits(
            kv_tokens_min=config.kv_tokens_min,
            queue_max=config.queue_max,
            wait_limit_ms=config.request_wait_ms,
            first_plan_nodes_min=config.nodes_min,
            first_plan_wait_ms=config.plan_wait_ms,
        ),
        rng=random.Random(seed),
        network_id=authority.network_id,
        software_version=software_version,
        wire_dtype=wire_dtype,
        digests={m.spec.model_id: m.source.digest or "" for m in models},
    )
    inbox, views = EventInbox(), ViewCache(core, clock)
    enrolment = Enrolment(ca=authority.ca, tokens=store.tokens, nodes=store.nodes)
    control = ControlService(
        inbox,
        Offer(
            models=tuple((model.spec, model.source) for model in models),
            telemetry_url=telemetry.url,
            telemetry_credentials=telemetry.credentials,
            telemetry_prefix=telemetry.prefix,
        ),
        enrolment.renew,
        admit=store.nodes.saw,
    )
    gateway = Gateway(
        config=GatewayConfig(
            network_id=authority.network_id,
            wire_dtype=wire_dtype,
            generate=GenerateLimits(
                default_max_tokens=config.max_tokens_default, generations_max=config.requests_max
            ),
        ),
        models=specs,
        tokenizers={model.spec.model_id: model.tokenizer for model in models},
        inbox=inbox,
        views=views,
        keys=store.keys,
        sign=authority.tickets.sign,
        clock=clock,
        new_id=lambda: secrets.token_hex(12),
        rng=random.SystemRandom(),
    )
    live_views = LiveViews(views, gateway.relay.progress)
    solver = Solver(inbox)
    journal = Journal(
        config.state_dir / "journal", start_unix_ms=clock.unix_ms(), note=f"seed={seed}"
    )
    return Parts(
        inbox=inbox,
        views=live_views,
        control=control,
        gateway=gateway,
        solver=solver,
        journal=journal,
        loop=Loop(
            core,
            inbox,
            clock,
            nodes=control,
            requests=gateway.relay,
            solver=solver,
            journal=journal,
        ),
        recorder=Recorder(views, store.history, clock),
        enrolment=EnrolmentService(
            enrolment, ticket_key=authority.tickets.public_bytes, node_address=f":{node_port}"
        ),
        admin=AdminService(
            views=live_views,
            keys=store.keys,
            tokens=store.tokens,
            nodes=store.nodes,
            inbox=inbox,
            public_address=public_address,
        ),
    )
