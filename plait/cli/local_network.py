"""A whole network on loopback as child processes: a coordinator and its nodes, with real tokens,
mutual TLS, tickets, keys and MQTT. What `plait demo` and the end-to-end tests stand on."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from coordinator.core.view import NetworkView, NodeView
from coordinator.view_json import network_from_json
from plait.cli.children import Child, Children
from plait.cli.huge_pages import SMALL, TUNABLES
from plait.config import ClientProfile
from plait.crypto.certificates import COORDINATOR_NAME
from plait.errors import DeadlineError, ServiceError
from plait.wire.channel import channel_options
from plait.wire.status import error_from_rpc
from plait.wire.v1 import admin_pb2, admin_pb2_grpc

START_S: Final = 60.0
POLL_S: Final = 0.1
CALL_S: Final = 10.0
LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """How to start one node. `memory_bytes` caps weights, KV and buffers; None: no cap. `advertise`
    is what neighbours dial; None: where it listens. `options` are further words of its command,
    `environment` further variables, `prefix` a command that becomes it."""

    name: str
    memory_bytes: int | None = None
    num_threads: int = 1
    listen: str = f"{LOOPBACK}:0"
    advertise: str | None = None
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()


@dataclass(slots=True)
class LocalNetwork:
    """A running coordinator and the nodes started so far. `home` holds everybody's files."""

    home: Path
    children: Children
    coordinator: Child
    profile: ClientProfile
    channel: grpc.Channel
    nodes: dict[str, Child] = field(default_factory=dict)

    def start_node(self, plan: NodePlan) -> Child:
        """Enrol and start a node with a fresh single-use token."""
        arguments = ["node", "join", self.profile.address, "--name", plan.name]
        arguments += ["--listen", plan.listen, "--threads", str(plan.num_threads)]
        arguments += ["--device", "cpu", *plan.options]
        if plan.advertise is not None:
            arguments += ["--advertise", plan.advertise]
        if plan.memory_bytes is not None:
            arguments += ["--memory", f"{plan.memory_bytes}B"]
        home = self.home / plan.name.replace(" ", "-")
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        threads = str(plan.num_threads)
        environment = {
            "PLAIT_HOME": str(home),
            "PLAIT_TOKEN": self.create_token(plan.name),  # not in argv, which others may list
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            TUNABLES: os.environ.get(TUNABLES) or SMALL,  # loads, answers and ends
            **plan.environment,
        }
        child = self.children.start(plan.name, arguments, environment, prefix=plan.prefix)
        self.nodes[plan.name] = child
        return child

    def create_token(self, name: str) -> str:
        """An enrolment token, by the operator's door. Raises PlaitError."""
        request = admin_pb2.CreateEnrolmentTokenRequest(display_name=name)
        stub = admin_pb2_grpc.AdminServiceStub(self.channel)
        try:
            response = stub.CreateEnrolmentToken(request, metadata=self.metadata, timeout=CALL_S)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error
        return response.token

    def view(self) -> NetworkView:
        """The network as the operator sees it. Raises PlaitError."""
        stub = admin_pb2_grpc.AdminServiceStub(self.channel)
        try:
            response = stub.GetNetwork(
                admin_pb2.GetNetworkRequest(), metadata=self.metadata, timeout=CALL_S
            )
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error
        return network_from_json(response.view_json)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        return (("authorization", f"Bearer {self.profile.api_key}"),)

    def wait(
        self,
        condition: Callable[[NetworkView], bool],
        *,
        timeout_s: float,
        what: str,
        watch: Callable[[NetworkView], None] = lambda _: None,
    ) -> NetworkView:
        """Poll until `condition`; a coordinator that is away is waited for too.

        Raises DeadlineError naming `what`, ChildError for a process that died.
        """
        deadline_s = time.perf_counter() + timeout_s
        trouble = ""
        while time.perf_counter() < deadline_s:
            self.children.check()
            try:
                view = self.view()
            except ServiceError as error:
                trouble = error.message
            else:
                watch(view)
                if condition(view):
                    return view
                trouble = _why(view)
            time.sleep(POLL_S)
        raise DeadlineError(f"{what} did not happen within {timeout_s:.0f} s: {trouble}")

    def node_view(self, view: NetworkView, name: str) -> NodeView:
        """The newest node of that display name. Raises DeadlineError where there is none."""
        found = [node for node in view.nodes if node.display_name == name]
        if not found:
            raise DeadlineError(f"no node {name!r} is attached")
        return max(found, key=lambda node: node.incarnation)


@contextmanager
def local_network(
    *,
    home: Path,
    model: str,
    num_nodes: int,
    options: tuple[str, ...] = (),
    host: str = LOOPBACK,
    prefix: tuple[str, ...] = (),
    start: Callable[[Path], Children] = Children,
) -> Iterator[LocalNetwork]:
    """Start a coordinator for `model` on free ports of `host`, by way of the command `prefix`; the
    first plan waits for `num_nodes`. Everything stops at the end of the block. `start` makes who
    starts processes, given where their logs go."""
    own_home = home / "coordinator-home"
    own_home.mkdir(mode=0o700, parents=True)
    listens = ["--listen", "--node-listen", "--http-listen", "--mqtt-listen"]
    arguments = ["coordinator", "--model", model, "--min-nodes", str(num_nodes)]
    arguments += [word for flag in listens for word in (flag, f"{host}:0")]
    arguments += ["--plan-wait-s", "60", *options]
    with start(home / "logs") as children:
        environment = {"PLAIT_HOME": str(own_home)}
        coordinator = children.start("coordinator", arguments, environment, prefix=prefix)
        profile = _wait_for_profile(own_home / "client.json", coordinator)
        with _channel(profile) as channel:
            yield LocalNetwork(home, children, coordinator, profile, channel)


def is_ready(view: NetworkView) -> bool:
    """Whether every model can be served now."""
    return bool(view.models) and all(model.is_ready for model in view.models)


def _wait_for_profile(path: Path, coordinator: Child) -> ClientProfile:
    deadline_s = time.perf_counter() + START_S
    while not path.exists():
        coordinator.check()
        if time.perf_counter() > deadline_s:
            raise DeadlineError(
                f"the coordinator was not ready within {START_S:.0f} s; its log "
                f"({coordinator.log_path}) ends so:\n{coordinator.tail()}"
            )
        time.sleep(POLL_S)
    return ClientProfile.load(path)


def _channel(profile: ClientProfile) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(root_certificates=profile.ca_pem.encode())
    options = [*channel_options(), ("grpc.ssl_target_name_override", COORDINATOR_NAME)]
    return grpc.secure_channel(profile.address, credentials, options=options)


def _why(view: NetworkView) -> str:
    nodes = ", ".join(
        f"{node.display_name} is {node.state}{f' ({node.last_error})' if node.last_error else ''}"
        for node in view.nodes
    )
    advice = "; ".join(model.advice for model in view.models if model.advice)
    return f"{nodes or 'no node is attached'}. {advice}".strip()
