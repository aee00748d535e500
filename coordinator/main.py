"""The coordinator's process: opens ports, runs the parts, announces itself, stops in order."""

import asyncio
import contextlib
import importlib
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from fastapi import FastAPI

from coordinator.assembly import Parts, Surroundings, assemble
from coordinator.config import CoordinatorConfig, Listen
from coordinator.dashboard.mount import mount
from coordinator.models import served_models
from coordinator.preflight import check_config
from coordinator.shell.authority import Authority
from coordinator.shell.broker_certificates import write_broker_certificates
from coordinator.shell.first_start import (
    ADMIN_KEY,
    ensure_keys,
    save_profile,
    write_token_files,
)
from coordinator.shell.latencies import Latencies
from coordinator.shell.metrics import metrics_router
from coordinator.shell.servers import GrpcDoor, bind, http_server
from coordinator.shell.store import open_store
from coordinator.shell.telemetry_hub import TelemetryHub, telemetry_hub
from coordinator.tracing import span_sink
from plait.clock import Clock, SystemClock
from plait.crypto.ownership import sole_owner
from plait.log import get

PUBLIC_CALLS_MAX: Final = 1_024
INTERRUPTED: Final = 130
LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
log = get("coordinator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What an operator wants to know first. Addresses are host:port, with the real ports.

    `login_url` signs in to the dashboard once, within minutes; empty without a dashboard.
    """

    network_id: str
    models: tuple[str, ...]
    public_address: str
    node_address: str
    http_url: str
    telemetry_url: str
    login_url: str
    join_command: str
    admin_key_path: Path
    client_key: str | None
    profile_path: Path | None

    @property
    def curl_example(self) -> str:
        """A request that works as it stands, once the network serves."""
        key = self.client_key or "YOUR_KEY"
        return (
            f"  curl {self.http_url}/v1/chat/completions -H 'Authorization: Bearer {key}' \\\n"
            "    -H 'Content-Type: application/json' \\\n"
            f'    -d \'{{"model": "{self.models[0]}", "messages": '
            '[{"role": "user", "content": "Why is the sky blue?"}]}\''
        )


async def run_until_signal(
    config: CoordinatorConfig, *, announce: Callable[[Announcement], None]
) -> None:
    """Serve until SIGINT or SIGTERM, then stop in order; a second signal stops at once.

    Raises ConfigError, ModelError.
    """
    # It brings numpy: better now than on the loop, with the first large network.
    importlib.import_module("scheduler.selection.rough")
    main_task = asyncio.current_task()
    assert main_task is not None
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        if is_stopping:
            os._exit(INTERRUPTED)
        is_stopping = True
        main_task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        async with coordinator(config) as news:
            announce(news)
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        if not is_stopping:
            raise
        log.info("stopped")


@contextlib.asynccontextmanager
async def coordinator(
    config: CoordinatorConfig, *, clock: Clock | None = None
) -> AsyncIterator[Announcement]:
    """A coordinator that serves inside the block.

    Raises ConfigError (ports, keys, store, broker) and ModelError before anything serves. A part
    that fails later is a bug: it ends the block with its own exception.
    """
    clock = clock if clock is not None else SystemClock()
    await asyncio.to_thread(check_config, config)
    models = await asyncio.to_thread(served_models, config.models, weights=config.weights)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(sole_owner(config.state_dir, role="coordinator", flag="--state-dir"))
        authority = Authority.open(config.state_dir / "authority", clock, names=_names(config))
        if config.broker_certs_dir is not None:
            write_broker_certificates(
                authority.ca, config.broker_certs_dir, config.broker_names, clock
            )
        doors = _Doors(
            public=_door(config.public, authority.tls_credentials(), PUBLIC_CALLS_MAX),
            node=_door(config.node, authority.mtls_credentials(), config.streams_max),
            http=stack.enter_context(
                bind(config.http.host, config.http.port, flag=config.http.flag)
            ),
            host=config.first_host,
        )
        ca_der, address = authority.ca.certificate_der, doors.public_address
        store = await stack.enter_async_context(
            open_store(config.database, clock, ca_der=ca_der, public_address=address)
        )
        around = Surroundings(
            config=config,
            models=models,
            authority=authority,
            store=store,
            telemetry=await stack.enter_async_context(_telemetry(config, authority, clock)),
            clock=clock,
            public_address=address,
            node_port=doors.node.port,
            spans=await stack.enter_async_context(span_sink(config, authority.network_id, clock)),
        )
        parts = assemble(around)
        if parts.traces is not None:
            stack.callback(parts.traces.stop)
        recalled = await parts.lifetimes.recall()
        if recalled is not None:
            parts.inbox.post(recalled)
        await stack.enter_async_context(_running(parts, around.telemetry))
        app, login_path = _http_app(parts, around)
        await stack.enter_async_context(
            http_server(app, doors.http, protocol=parts.gateway.http_protocol())
        )
        await stack.enter_async_context(doors.public.serve(parts.add_to_public_port))
        await stack.enter_async_context(doors.node.serve(parts.add_to_node_port))
        stack.callback(parts.control.close_all)
        stack.callback(parts.gateway.stop)
        stack.callback(parts.lifetimes.stop)
        yield await _announcement(around, doors, login_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doors:
    """Bound ports."""

    public: GrpcDoor
    node: GrpcDoor
    http: socket.socket
    host: str

    @property
    def public_address(self) -> str:
        return _host_port(self.host, self.public.port)

    @property
    def node_address(self) -> str:
        return _host_port(self.host, self.node.port)

    @property
    def http_url(self) -> str:
        return f"http://{_host_port(self.host, self.http.getsockname()[1])}"


@contextlib.asynccontextmanager
async def _running(parts: Parts, telemetry: TelemetryHub) -> AsyncIterator[None]:
    """The parts' own tasks. One that fails is our bug and ends the coordinator."""
    parts.journal.start()
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(parts.loop.run(), name="core"),
                tasks.create_task(parts.solver.run(), name="solver"),
                tasks.create_task(parts.weights.run(), name="weights"),
                tasks.create_task(parts.recorder.run(), name="recorder"),
                tasks.create_task(parts.lifetimes.run(), name="lifetimes"),
            ]
            if telemetry.subscriber is not None:
                running.append(tasks.create_task(telemetry.subscriber.run(), name="telemetry"))
                running.append(tasks.create_task(telemetry.maintain(), name="telemetry papers"))
            try:
                yield
            finally:
                for task in running:
                    task.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        raise group.exceptions[0] from None
    finally:
        await parts.gateway.close()
        parts.journal.stop()


def _door(listen: Listen, credentials: grpc.ServerCredentials, calls_max: int) -> GrpcDoor:
    return GrpcDoor(
        host=listen.host,
        port=listen.port,
        flag=listen.flag,
        credentials=credentials,
        calls_max=calls_max,
    )


def _telemetry(
    config: CoordinatorConfig, authority: Authority, clock: Clock
) -> contextlib.AbstractAsyncContextManager[TelemetryHub]:
    is_on, listen = config.is_mqtt_enabled, (config.mqtt.host, config.mqtt.port)
    return telemetry_hub(
        authority=authority,
        folder=config.state_dir / "telemetry",
        clock=clock,
        rng=random.SystemRandom(),
        url=config.mqtt_url if is_on else None,
        listen=listen if is_on else None,
    )


def _http_app(parts: Parts, around: Surroundings) -> tuple[FastAPI, str]:
    """OpenAI door, metrics and dashboard, and a path that signs in to the dashboard once (empty
    where it is off)."""
    telemetry, keys = around.telemetry, around.store.keys
    app = parts.gateway.http_app()
    latencies = Latencies()
    parts.gateway.generator.finished_hooks.append(
        lambda model_id, end: latencies.ended(
            model_id, end.ttft_ms, end.total_ms, end.completion_tokens
        )
    )
    app.include_router(
        metrics_router(views=parts.views, telemetry=telemetry.view, keys=keys, latencies=latencies)
    )
    if not around.config.is_dashboard_enabled:
        return app, ""
    dashboard = mount(
        app,
        views=parts.views,
        telemetry=telemetry.view if telemetry.subscriber is not None else None,
        keys=keys,
        tokens=around.store.tokens,
        register=around.store.nodes,
        archive=around.store.history,
        routes=around.store.routes,
        chronicle=parts.chronicle,
        previewer=parts.previewer,
        inbox=parts.inbox,
        clock=around.clock,
        join_address=around.public_address,
        specs=around.specs,
    )
    return app, dashboard.new_login_path()


async def _announcement(around: Surroundings, doors: _Doors, login_path: str) -> Announcement:
    """Make keys, tokens and the profile; say where everything is."""
    config, store = around.config, around.store
    keys = await ensure_keys(store.keys, config.state_dir)
    await write_token_files(store.tokens, config.token_files)
    token, _ = await store.tokens.create_token(display_name="printed at start", valid_s=0)
    profile_path = None
    if config.is_profile_written:
        profile_path = save_profile(
            address=doors.public_address,
            ca_pem=around.authority.ca_pem,
            admin_key=keys.admin,
            http_url=doors.http_url,
        )
    return Announcement(
        network_id=around.authority.network_id,
        models=tuple(model.spec.model_id for model in around.models),
        public_address=doors.public_address,
        node_address=doors.node_address,
        http_url=doors.http_url,
        # Nodes are told no host, for ours is where they dial; people are.
        telemetry_url=around.telemetry.url.replace("://:", f"://{_host_port(doors.host, 0)[:-1]}"),
        login_url=f"{doors.http_url}{login_path}" if login_path else "",
        join_command=f"plait node join {doors.public_address} --token {token}",
        admin_key_path=config.state_dir / ADMIN_KEY,
        client_key=keys.client,
        profile_path=profile_path,
    )


def _names(config: CoordinatorConfig) -> tuple[str, ...]:
    """What the coordinator's certificate is for: all that it may be dialled by."""
    listened = [
        listen.host for listen in (config.public, config.node, config.mqtt) if not listen.is_any
    ]
    return tuple(dict.fromkeys((*config.advertised_hosts, *listened, *LOCAL_NAMES)))


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
