"""A node as its owner meets it: a process that joins, serves, is stopped and comes back."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from coordinator.core.view import NetworkView, NodeView
from plait.cli.children import Child
from plait.cli.local_network import LocalNetwork, NodePlan, is_ready, local_network
from tests.kit.chaos import kill
from tests.kit.network import client_of
from tests.kit.tiny_model import write_tiny_model
from tests.kit.wait import until_sync
from tests.kit.warm import WarmChildren

pytestmark = pytest.mark.slow
NODE = "volunteer"
SERVE_S = 60.0
CONTEXT = 8_192
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """A coordinator of a tiny model; nodes come and go."""
    home = tmp_path_factory.mktemp("node-process")
    write_tiny_model(home / "tiny", context_tokens=CONTEXT)
    options = ("--no-mqtt", "--kv-tokens", str(CONTEXT))
    with local_network(
        home=home, model=str(home / "tiny"), num_nodes=1, options=options, start=WarmChildren
    ) as network:
        yield network


def rejoin(network: LocalNetwork, log_name: str, *extra: str) -> Child:
    """Start the node that enrolled before, without a token."""
    environment = {"PLAIT_HOME": str(network.home / NODE), "OMP_NUM_THREADS": "1"}
    arguments = ["node", "join", "--listen", "127.0.0.1:0", "--threads", "1", *extra]
    return network.children.start(log_name, arguments, environment)


def ended(child: Child, *, timeout_s: float = 10.0) -> int:
    until_sync(lambda: not child.is_running, timeout_s=timeout_s, what="the node's end")
    code = child.process.returncode
    assert code is not None
    return code


def test_a_node_leaves_comes_back_without_a_token_and_can_be_stopped_at_once(
    network: LocalNetwork,
) -> None:
    child = network.start_node(NodePlan(name=NODE))
    network.wait(is_ready, timeout_s=SERVE_S, what="a serving node")
    with client_of(network) as client:
        before = client.generate(PROMPT, max_tokens=8, temperature=0.0, ignore_eos=True)
    os.kill(child.pid, signal.SIGTERM)
    assert ended(child) == 0
    network.children.forget(child)
    network.wait(_is_empty, timeout_s=5, what="its departure")

    child = rejoin(network, "again", "--drain-s", "60")
    network.wait(is_ready, timeout_s=SERVE_S, what="its return")
    network.wait(_fetches_nothing, timeout_s=5, what="a plan that knows of the weights on its disk")
    with client_of(network) as client:
        after = client.generate(PROMPT, max_tokens=8, temperature=0.0, ignore_eos=True)
        assert list(after.token_ids) == list(before.token_ids)
        stream = client.stream(PROMPT, max_tokens=7_000, temperature=0.0, ignore_eos=True)
        next(iter(stream))
        os.kill(child.pid, signal.SIGINT)
        until_sync(lambda: "leaving:" in child.tail(), what="the first Ctrl-C is heard")
        assert child.is_running, "it finishes what runs"
        os.kill(child.pid, signal.SIGINT)
        assert ended(child, timeout_s=2) == 130
    network.children.forget(child)
    lines = child.log_path.read_text("utf-8")
    for words in ("connecting to", "measuring", "assigned layers", "stage 1 of", "serving layers"):
        assert words in lines
    assert "plait1." not in lines


def _is_empty(view: NetworkView) -> bool:
    return not any(node.state == "serving" for node in view.nodes)


def _fetches_nothing(view: NetworkView) -> bool:
    return view.plan is not None and view.plan.moved_bytes > 0 == view.plan.fetched_bytes


def test_a_kept_node_that_is_killed_is_started_anew(network: LocalNetwork) -> None:
    arguments = ["node", "keep", network.profile.address, "--name", "kept"]
    environment = {
        "PLAIT_HOME": str(network.home / "kept"),
        "PLAIT_TOKEN": network.create_token("kept"),
        "OMP_NUM_THREADS": "1",
    }
    keeper = network.children.start(
        "kept", [*arguments, "--listen", "127.0.0.1:0", "--threads", "1"], environment
    )
    until_sync(lambda: node_of(keeper) != 0, what="the kept process")
    first = network.wait(_serves_kept, timeout_s=SERVE_S, what="the kept node")
    killed = node_of(keeper)
    kill(killed)
    until_sync(lambda: node_of(keeper) not in (0, killed), timeout_s=5, what="the next process")
    again = network.wait(
        lambda view: _serves_kept(view) and _kept(view).incarnation > _kept(first).incarnation,
        timeout_s=SERVE_S,
        what="its return",
    )
    assert _kept(again).node_id == _kept(first).node_id
    keeper.process.terminate()
    assert ended(keeper) == 0
    network.children.forget(keeper)
    network.wait(_is_empty, timeout_s=5, what="its departure")


def _kept(view: NetworkView) -> NodeView:
    return max(
        (node for node in view.nodes if node.display_name == "kept"),
        key=lambda node: node.incarnation,
    )


def _serves_kept(view: NetworkView) -> bool:
    """The node before may still be seen to serve for a moment."""
    return any(node.display_name == "kept" and node.state == "serving" for node in view.nodes)


def node_of(keeper: Child) -> int:
    """The process id of the node that a keeper runs; 0 where there is none now."""
    return next((child.pid for child in psutil.Process(keeper.pid).children()), 0)


def test_a_taken_port_and_a_missing_token_are_one_clear_line(
    network: LocalNetwork, tmp_path: Path
) -> None:
    child = rejoin(network, "taken port", "--listen", network.profile.address)
    assert ended(child, timeout_s=30) == 1
    assert "in use by another program" in " ".join(child.tail(3).split())
    network.children.forget(child)
    stranger = network.children.start(
        "stranger", ["node", "join", "127.0.0.1:1"], {"PLAIT_HOME": str(tmp_path)}
    )
    assert ended(stranger, timeout_s=30) == 1
    assert "plait token create" in " ".join(stranger.tail(4).split())
    network.children.forget(stranger)


def test_status_tells_papers_and_reachability(network: LocalNetwork) -> None:
    environment = {"PLAIT_HOME": str(network.home / NODE), "COLUMNS": "120"}
    child = network.children.start("status", ["node", "status"], environment)
    assert ended(child, timeout_s=30) == 0
    assert "reachable" in child.tail()
    network.children.forget(child)
