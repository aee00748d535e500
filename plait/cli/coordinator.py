"""`plait coordinator`: run the coordinator of a network on this machine."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.durations import milliseconds
from plait.cli.extras import needs
from plait.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.config import CoordinatorConfig
    from coordinator.main import Announcement

app = typer.Typer(help="Run the coordinator of a network on this machine.")
LEVELS = ("debug", "info", "warning", "error")


@app.callback(invoke_without_command=True)
def run(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="A model to serve: catalogue name, hub id, folder or GGUF; again for more.",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Public gRPC door, for clients and enrolment.")
    ] = "0.0.0.0:7420",
    node_listen: Annotated[str, typer.Option(help="Door for nodes (mutual TLS).")] = "0.0.0.0:7421",
    http_listen: Annotated[
        str, typer.Option(help="OpenAI door and dashboard (HTTP).")
    ] = "0.0.0.0:7480",
    advertise: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name or IP that reaches this machine; may be repeated, the first is printed."
        ),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help="SQLAlchemy URL.", show_default="SQLite in the state folder"),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(help="Keys, store and journal.", show_default="under PLAIT_HOME"),
    ] = None,
    mqtt: Annotated[
        str | None,
        typer.Option(help="mqtt:// or mqtts:// broker.", show_default="an embedded one"),
    ] = None,
    mqtt_listen: Annotated[
        str, typer.Option(help="Where the embedded broker listens (MQTT over TLS).")
    ] = "0.0.0.0:7422",
    no_mqtt: Annotated[bool, typer.Option("--no-mqtt", help="No telemetry broker.")] = False,
    broker_certs: Annotated[
        Path | None, typer.Option(help="Write certificates for your own broker to this folder.")
    ] = None,
    broker_name: Annotated[
        list[str] | None,
        typer.Option(help="Host name of your own broker, for its certificate; may be repeated."),
    ] = None,
    token_file: Annotated[
        list[Path] | None,
        typer.Option(help="Keep an enrolment token in this file, for one node."),
    ] = None,
    min_nodes: Annotated[int, typer.Option(help="Measured nodes before the first plan.")] = 1,
    plan_wait_s: Annotated[
        float, typer.Option(help="How long the first plan waits for more nodes.")
    ] = 3.0,
    kv_tokens: Annotated[int, typer.Option(help="KV slots that every node must have.")] = 2_048,
    wire_dtype: Annotated[
        str,
        typer.Option(
            help="Activations on the wire: float32, float16, bfloat16, int8, or auto: the widest "
            "that each link carries without holding its stage up; only float32 promises the "
            "tokens of one machine."
        ),
    ] = "float32",
    weights: Annotated[
        str,
        typer.Option(
            help="Numbers of the weights, on every node: auto, fp32, fp16, int8, int4 or stored."
        ),
    ] = "auto",
    max_tokens: Annotated[int, typer.Option(help="Answer length where a client says none.")] = 256,
    queue_max: Annotated[int, typer.Option(help="Requests that may wait for a chain.")] = 256,
    request_wait_s: Annotated[
        float, typer.Option(help="How long a request waits for a chain before it is refused.")
    ] = 30.0,
    demand: Annotated[
        str,
        typer.Option(
            help="NAME=WEIGHT,...: how models share the network.", show_default="as observed"
        ),
    ] = "",
    min_replicas: Annotated[
        str, typer.Option(help="NAME=COUNT,...: chains a model has before any has more.")
    ] = "",
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            help="OpenTelemetry collector (OTLP over HTTP) that gets a trace of every request.",
            show_default="OTEL_EXPORTER_OTLP_ENDPOINT, else none",
        ),
    ] = None,
    no_profile: Annotated[
        bool, typer.Option("--no-profile", help="Do not write client.json for this user's CLI.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object a line.")] = False,
) -> None:
    """Run the coordinator until Ctrl-C or SIGTERM."""
    needs("coordinator")
    from coordinator.config import (
        HTTP_PORT,
        MQTT_PORT,
        NODE_PORT,
        PUBLIC_PORT,
        CoordinatorConfig,
        parse_counts,
        parse_listen,
        parse_weights,
        tracing_of,
    )
    from plait import log
    from plait.config import home_dir

    if log_level not in LEVELS:
        raise ConfigError(f"--log-level {log_level}: choose one of {', '.join(LEVELS)}")
    is_traced, otlp = tracing_of(otlp_endpoint, os.environ)
    if is_traced:
        needs("coordinator", "otel")
    log.configure(level=log_level, as_json=log_json)
    config = CoordinatorConfig(
        models=tuple(model or ()),
        public=parse_listen(listen, flag="--listen", default_port=PUBLIC_PORT),
        node=parse_listen(node_listen, flag="--node-listen", default_port=NODE_PORT),
        http=parse_listen(http_listen, flag="--http-listen", default_port=HTTP_PORT),
        advertised_hosts=tuple(advertise or ()),
        state_dir=state_dir if state_dir is not None else home_dir() / "coordinator",
        database_url=database,
        mqtt=parse_listen(mqtt_listen, flag="--mqtt-listen", default_port=MQTT_PORT),
        mqtt_url=mqtt,
        is_mqtt_enabled=not no_mqtt,
        broker_certs_dir=broker_certs,
        broker_names=tuple(broker_name or ()),
        token_files=tuple(token_file or ()),
        nodes_min=min_nodes,
        plan_wait_ms=milliseconds(plan_wait_s, flag="--plan-wait-s"),
        kv_tokens_min=kv_tokens,
        wire_dtype=wire_dtype,
        weights=weights,
        max_tokens_default=max_tokens,
        queue_max=queue_max,
        request_wait_ms=milliseconds(request_wait_s, flag="--request-wait-s"),
        is_profile_written=not no_profile,
        demand=parse_weights(demand, flag="--demand"),
        replicas_min=parse_counts(min_replicas, flag="--min-replicas"),
        is_traced=is_traced,
        otlp_endpoint=otlp,
    )
    _run(config)


def _run(config: "CoordinatorConfig") -> None:
    import asyncio

    # The first line before the libraries, which take seconds.
    typer.echo(f"plait coordinator: starting, to serve {', '.join(config.models)}", err=True)
    from coordinator.main import run_until_signal
    from plait.cli.settled import keep_imports

    keep_imports()
    asyncio.run(run_until_signal(config, announce=_announce))


def _announce(news: "Announcement") -> None:
    """The banner: where the network is, how to log in, how to join, how to ask."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in (
        ("network", news.network_id),
        ("models", ", ".join(news.models)),
        ("clients (gRPC)", news.public_address),
        ("clients (OpenAI)", f"{news.http_url}/v1"),
        ("nodes", news.node_address),
        ("telemetry", news.telemetry_url or "off"),
        ("dashboard", f"{news.http_url}/dashboard"),
        ("operator's key", str(news.admin_key_path)),
        ("profile", str(news.profile_path or "not written")),
    ):
        table.add_row(name, Text(value))
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(Panel(table, title="plait coordinator", expand=False))
    for title, line in (
        ("Sign in to the dashboard (once, or with the operator's key):", f"  {news.login_url}"),
        ("A machine joins with (once, within a day):", f"  {news.join_command}"),
        ("A client asks with:", news.curl_example),
    ):
        console.print(title, style="bold")
        console.print(Text(line))
