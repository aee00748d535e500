"""Whole networks of real processes for tests, on top of `plait.cli.local_network`."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator.core.view import NetworkView
from plait.cli.local_network import LocalNetwork, NodePlan, local_network
from plait.models import load_spec, pull, resolve
from plait.sdk import Client
from plait.types import ModelSource, ModelSpec
from tests.kit.memory import cap_for_stages
from tests.kit.tiny_model import write_tiny_model
from tests.kit.warm import WarmChildren

SMOLLM: str = "smollm2-135m-instruct"
SERVE_S = 300.0
KV_TOKENS = 1_024
"""Slots that coordinators ask of every stage; a shorter context needs no more than its length."""


def smollm() -> tuple[ModelSource, ModelSpec]:
    """The real SmolLM2 on this machine, pulled where it is not here yet, and its shape."""
    source = pull(resolve(SMOLLM))
    return source, load_spec(source)


@contextmanager
def serving_network(
    home: Path,
    model: str,
    spec: ModelSpec,
    *,
    num_stages: int,
    num_spares: int = 0,
    telemetry: tuple[str, ...] = ("--no-mqtt",),
    kv_tokens: int = KV_TOKENS,
) -> Iterator[LocalNetwork]:
    """A network in which all nodes serve. Memory is capped so that every chain needs `num_stages`
    of them; `num_spares` join a running network, so they hold layers that others hold already.
    `telemetry` are the coordinator's options for its broker, and others. Asserts before the block
    begins that a route takes `num_stages` nodes. All in fp32: memory is reckoned and answers are
    compared so."""
    options = ("--kv-tokens", str(kv_tokens), "--weights", "fp32", *telemetry)
    with local_network(
        home=home, model=model, num_nodes=num_stages, options=options, start=WarmChildren
    ) as network:
        cap = cap_for_stages(spec, num_stages, kv_tokens)
        for first, count in ((1, num_stages), (num_stages + 1, num_spares)):
            for number in range(first, first + count):
                network.start_node(NodePlan(name=f"node {number}", memory_bytes=cap))
            expected = first + count - 1
            network.wait(
                lambda view, expected=expected: num_serving(view) == expected,  # type: ignore[misc]
                timeout_s=SERVE_S,
                what=f"{expected} serving nodes",
            )
        with client_of(network) as client:
            answer = client.generate([1], max_tokens=2, ignore_eos=True)
        assert len(answer.route) == num_stages, answer.route
        yield network


def kill_and_restart_coordinator(
    network: LocalNetwork, model: str, how: signal.Signals = signal.SIGKILL
) -> None:
    """End it, then a new process with the same state on the same ports. Nodes are told nothing."""
    network.coordinator.process.send_signal(how)
    network.children.forget(network.coordinator)
    (papers,) = network.home.glob("node-1/nodes/*/node.json")
    node_address = json.loads(papers.read_text())["node_address"]
    arguments = ["coordinator", "--model", model, "--no-mqtt", "--kv-tokens", str(KV_TOKENS)]
    arguments += ["--weights", "fp32"]
    arguments += ["--listen", network.profile.address, "--node-listen", node_address]
    arguments += ["--http-listen", network.profile.http_url.removeprefix("http://")]
    home = network.home / "coordinator-home"
    network.coordinator = network.children.start(
        "coordinator-again", arguments, {"PLAIT_HOME": str(home)}
    )


@contextmanager
def two_tiny_chains(home: Path) -> Iterator[LocalNetwork]:
    """Two chains of two nodes each, of the tiny model, which lies in `home / "tiny"`."""
    spec = write_tiny_model(home / "tiny")
    with serving_network(home, str(home / "tiny"), spec, num_stages=2, num_spares=2) as network:
        yield network


def rejoin_node(
    network: LocalNetwork,
    name: str,
    spec: ModelSpec,
    *,
    num_stages: int,
    kv_tokens: int = KV_TOKENS,
) -> None:
    """Start a node that has ended anew, with the papers and the cap that it had."""
    cap = cap_for_stages(spec, num_stages, kv_tokens)
    arguments = ["node", "join", "--name", name, "--listen", "127.0.0.1:0", "--threads", "1"]
    arguments += ["--device", "cpu", "--memory", f"{cap}B"]
    home = network.home / name.replace(" ", "-")
    environment = {"PLAIT_HOME": str(home), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    network.nodes[name] = network.children.start(f"{name} again", arguments, environment)


def num_serving(view: NetworkView) -> int:
    """Nodes that may be chosen for a route."""
    return sum(node.state == "serving" for node in view.nodes)


def client_of(network: LocalNetwork) -> Client:
    """An SDK client with the operator's key."""
    profile = network.profile
    return Client(address=profile.address, api_key=profile.api_key, ca=profile.ca_pem)


def now_ms() -> int:
    """The machine's monotonic clock, which the coordinator's journal is stamped with too."""
    return time.monotonic_ns() // 1_000_000
