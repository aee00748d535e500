"""Whole networks of real processes for tests, on top of `plait.cli.local_network`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator.core.view import NetworkView
from plait.cli.demo import KV_TOKENS, memory_cap_bytes
from plait.cli.local_network import LocalNetwork, NodePlan, local_network
from plait.models import load_spec, pull, resolve
from plait.sdk import Client
from plait.types import ModelSource, ModelSpec

SMOLLM: str = "smollm2-135m-instruct"
SERVE_S = 120.0


def smollm() -> tuple[ModelSource, ModelSpec]:
    """The real SmolLM2 on this machine, pulled where it is not here yet, and its shape."""
    source = pull(resolve(SMOLLM))
    return source, load_spec(source)


@contextmanager
def serving_network(
    home: Path, model: str, spec: ModelSpec, *, num_nodes: int, num_stages: int
) -> Iterator[LocalNetwork]:
    """A network in which all `num_nodes` serve; memory is capped so that a chain needs
    `num_stages` of them."""
    options = ("--kv-tokens", str(KV_TOKENS), "--no-mqtt")
    with local_network(home=home, model=model, num_nodes=num_nodes, options=options) as network:
        cap = memory_cap_bytes(spec, num_stages)
        for number in range(1, num_nodes + 1):
            network.start_node(NodePlan(name=f"node {number}", memory_bytes=cap))
        network.wait(
            lambda view: num_serving(view) == num_nodes,
            timeout_s=SERVE_S,
            what=f"{num_nodes} serving nodes",
        )
        yield network


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
