"""What an operator can set. Everything else is decided or measured."""

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from plait.config import home_dir
from plait.errors import ConfigError
from plait.types import DType

PUBLIC_PORT: Final = 7420
NODE_PORT: Final = 7421
HTTP_PORT: Final = 7480
MQTT_PORT: Final = 7422
AUTO: Final = "auto"
"""As a --wire-dtype: what suits each link."""

OTLP_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_WEIGHTS: Final = ("auto", "fp32", "fp16", "int8", "int4", "stored")
_HOST_NAME: Final = re.compile(r"^(?!-)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*\.?$")


@dataclass(frozen=True, slots=True)
class Listen:
    """An address to listen on. Port 0 lets the system choose; `flag` is what the operator typed."""

    host: str
    port: int
    flag: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def is_any(self) -> bool:
        return self.host in ("0.0.0.0", "::")


def parse_listen(text: str, *, flag: str, default_port: int) -> Listen:
    """`HOST:PORT`, `HOST`, `:PORT` or `PORT`. Raises ConfigError naming `flag`."""
    host, port_text = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port_text = rest.removeprefix(":")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError(f"{flag} {text}: give HOST:PORT or [IPV6]:PORT")
    elif text.count(":") == 1:
        host, _, port_text = text.partition(":")
    elif text.isdecimal():
        host, port_text = "", text
    port = default_port
    if port_text:
        if not port_text.isdecimal() or int(port_text) > 65_535:
            raise ConfigError(f"{flag} {text}: {port_text!r} is not a port (0 to 65535)")
        port = int(port_text)
    host = host or "0.0.0.0"
    check_host(host, flag=flag)
    return Listen(host, port, flag)


def check_host(host: str, *, flag: str) -> None:
    """Raises ConfigError unless `host` is an IP address or a host name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _HOST_NAME.match(host):
            raise ConfigError(f"{flag}: {host!r} is neither a host name nor an address") from None


def parse_weights(text: str, *, flag: str) -> tuple[tuple[str, float], ...]:
    """`NAME=NUMBER,NAME=NUMBER`, numbers above 0; nothing for an empty text. Raises ConfigError
    naming `flag`."""
    weights: list[tuple[str, float]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, figure = part.rpartition("=")
        try:
            weight = float(figure)
        except ValueError:
            weight = math.nan
        if not name or not equals or not 0.0 < weight < math.inf:
            raise ConfigError(f"{flag} {text}: give NAME=NUMBER,NAME=NUMBER, numbers above 0")
        weights.append((name, weight))
    return tuple(weights)


def tracing_of(endpoint: str | None, env: Mapping[str, str]) -> tuple[bool, str | None]:
    """Whether requests are traced, and to where, None leaving it to `env`: an endpoint is enough,
    given here or as OpenTelemetry's variables have it. Raises ConfigError for what is no URL."""
    if endpoint is not None and not re.match(r"https?://[^/\s]+", endpoint):
        raise ConfigError(f"--otlp-endpoint {endpoint}: give a URL, such as http://HOST:4318")
    is_off = env.get("OTEL_SDK_DISABLED", "").lower() == "true"
    is_off = is_off or env.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
    is_named = any(env.get(name) for name in OTLP_VARIABLES) and not is_off
    return endpoint is not None or is_named, endpoint


def parse_counts(text: str, *, flag: str) -> tuple[tuple[str, int], ...]:
    """The same of whole numbers."""
    weights = parse_weights(text, flag=flag)
    if any(weight != int(weight) for _, weight in weights):
        raise ConfigError(f"{flag} {text}: chains are whole numbers")
    return tuple((name, int(weight)) for name, weight in weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """One coordinator. Times in the unit of their name.

    `advertised_hosts` are names and addresses under which clients and nodes reach this machine:
    they stand in its certificate, and the first one in what it prints. `mqtt_url` None starts the
    embedded broker on `mqtt`; for a broker of the operator's, certificates of this network can be
    written to `broker_certs_dir` for the names it is dialled by. Each of `token_files` receives an
    enrolment token, unless one that is still good, or let a node in, is there. Planning begins once
    `nodes_min` nodes are profiled, or `plan_wait_ms` after the first one. `demand` (name of model,
    weight) shares the network between models, as observed where it is empty; `replicas_min` (name,
    chains) is what each is to have first. `weights` is what numbers all nodes compute with. Where
    requests are traced, `otlp_endpoint` None leaves it to OTEL_EXPORTER_OTLP_* where to.
    """

    models: tuple[str, ...]
    public: Listen = Listen("0.0.0.0", PUBLIC_PORT, "--listen")
    node: Listen = Listen("0.0.0.0", NODE_PORT, "--node-listen")
    http: Listen = Listen("0.0.0.0", HTTP_PORT, "--http-listen")
    advertised_hosts: tuple[str, ...] = ()
    state_dir: Path = field(default_factory=lambda: home_dir() / "coordinator")
    database_url: str | None = None
    mqtt: Listen = Listen("0.0.0.0", MQTT_PORT, "--mqtt-listen")
    mqtt_url: str | None = None
    is_mqtt_enabled: bool = True
    broker_certs_dir: Path | None = None
    broker_names: tuple[str, ...] = ()
    token_files: tuple[Path, ...] = ()
    nodes_min: int = 1
    plan_wait_ms: int = 3_000
    kv_tokens_min: int = 2_048
    wire_dtype: str = "float32"
    weights: str = "fp32"
    max_tokens_default: int = 256
    queue_max: int = 256
    requests_max: int = 256
    streams_max: int = 4_096
    request_wait_ms: int = 30_000
    is_profile_written: bool = True
    is_dashboard_enabled: bool = True
    demand: tuple[tuple[str, float], ...] = ()
    replicas_min: tuple[tuple[str, int], ...] = ()
    is_traced: bool = False
    otlp_endpoint: str | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("no model: name one with --model, e.g. smollm2-135m-instruct")
        if len(set(self.models)) != len(self.models):
            raise ConfigError("--model names one model twice")
        for flag, names in (
            ("--demand", [name for name, _ in self.demand]),
            ("--min-replicas", [name for name, _ in self.replicas_min]),
        ):
            unknown = [name for name in names if name not in self.models]
            if unknown or len(set(names)) != len(names):
                said = f"{unknown[0]} is no --model" if unknown else "it names one model twice"
                raise ConfigError(f"{flag}: {said}; models: {', '.join(self.models)}")
        for host in self.advertised_hosts:
            check_host(host, flag="--advertise")
        for host in self.broker_names:
            check_host(host, flag="--broker-name")
        if self.broker_certs_dir is not None and not self.broker_names:
            raise ConfigError("--broker-certs needs --broker-name: the host that nodes dial")
        for name, value in (
            ("--min-nodes", self.nodes_min),
            ("--kv-tokens", self.kv_tokens_min),
            ("--max-tokens", self.max_tokens_default),
            ("--queue-max", self.queue_max),
        ):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        for name, wait_ms in (
            ("--plan-wait-s", self.plan_wait_ms),
            ("--request-wait-s", self.request_wait_ms),
        ):
            if wait_ms < 0:
                raise ConfigError(f"{name} cannot be negative")
        if self.wire_dtype not in (AUTO, *DType):
            words = ", ".join((AUTO, *DType))
            raise ConfigError(f"--wire-dtype {self.wire_dtype}: choose one of {words}")
        if self.weights not in _WEIGHTS:
            raise ConfigError(f"--weights {self.weights}: choose one of {', '.join(_WEIGHTS)}")
        taken: dict[tuple[str, int], str] = {}
        for listen in (self.public, self.node, self.http, self.mqtt):
            if listen.port == 0:
                continue
            other = taken.setdefault((listen.host, listen.port), listen.flag)
            if other != listen.flag:
                raise ConfigError(f"{other} and {listen.flag} both ask for {listen}")

    @property
    def database(self) -> str:
        """The store's SQLAlchemy URL."""
        return self.database_url or f"sqlite+aiosqlite:///{self.state_dir / 'plait.db'}"

    @property
    def first_host(self) -> str:
        """The host that join lines and URLs name."""
        if self.advertised_hosts:
            return self.advertised_hosts[0]
        return "127.0.0.1" if self.public.is_any else self.public.host
