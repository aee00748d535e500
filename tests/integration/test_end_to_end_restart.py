"""Planned leaves and restarts under load, with real processes: no client notices."""

import os
import random
import signal
from collections.abc import Callable, Iterator

import pytest

from plait.cli.children import Child
from plait.cli.local_network import LocalNetwork
from plait.models import load_spec, resolve
from tests.kit.crowd import Crowd
from tests.kit.network import (
    client_of,
    kill_and_restart_coordinator,
    num_serving,
    rejoin_node,
    two_tiny_chains,
)
from tests.kit.wait import until_sync

pytestmark = pytest.mark.slow
NUM_TOKENS = 100
NUM_STREAMS = 8
DONE_S = 90.0
LEAVE_S = 10.0
BACK_S = 5.0
"""In which nodes find a coordinator again that is back."""
KILLS = int(os.environ.get("PLAIT_KILLS", "3"))
"""How often the coordinator is killed; `PLAIT_KILLS=20` for a longer look."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """Two chains of two nodes each."""
    home = tmp_path_factory.mktemp("restarted-network")
    with two_tiny_chains(home) as network:
        yield network


@pytest.fixture(scope="module")
def crowd(network: LocalNetwork) -> Iterator[Crowd]:
    """What each stream gives undisturbed is asked once."""
    with (
        client_of(network) as client,
        Crowd(client, num=NUM_STREAMS, num_tokens=NUM_TOKENS) as crowd,
    ):
        yield crowd


def sigterm(network: LocalNetwork, name: str) -> None:
    """What an owner's service manager does, and Ctrl-C."""
    os.kill(network.nodes[name].pid, signal.SIGTERM)


def operator(network: LocalNetwork, name: str) -> Child:
    """`plait node drain NAME`, from anywhere."""
    profile = network.profile
    (network.home / "ca.pem").write_text(profile.ca_pem)
    return drain(
        network,
        name,
        PLAIT_ADDRESS=profile.address,
        PLAIT_API_KEY=profile.api_key,
        PLAIT_CA=str(network.home / "ca.pem"),
    )


def owner(network: LocalNetwork, name: str) -> Child:
    """`plait node drain` on the node's own machine."""
    return drain(network, PLAIT_HOME=str(network.home / name.replace(" ", "-")))


def drain(network: LocalNetwork, *words: str, **environment: str) -> Child:
    """Returns once the drain has begun."""
    command = network.children.start(
        "drain " + "".join(words), ["node", "drain", *words], environment
    )
    until_sync(
        lambda: command.tail().startswith("draining"), timeout_s=LEAVE_S, what="a drain that began"
    )
    return command


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ask", [sigterm, operator, owner])
def test_a_node_that_leaves_under_load_is_out_in_ten_seconds_and_nobody_notices(
    network: LocalNetwork,
    crowd: Crowd,
    ask: Callable[[LocalNetwork, str], Child | None],
) -> None:
    asked = crowd.start()
    view = network.wait(
        lambda view: sum(n.kv_tokens_reserved > 0 for n in view.nodes) >= 2,
        timeout_s=20,
        what="streams under way",
    )
    name = next(n.display_name for n in view.nodes if n.kv_tokens_reserved > 0)
    command = ask(network, name)
    assert not all(each.done() for each in asked), "it leaves under load"
    child = network.nodes.pop(name)
    code = child.process.wait(LEAVE_S)
    network.children.forget(child)
    if command is not None:
        assert command.process.wait(LEAVE_S) == 0
        assert command.tail(1).startswith("drained:")
        network.children.forget(command)
    answers = crowd.check(asked, timeout_s=DONE_S)
    assert code == 0
    assert all(answer.num_attempts <= 3 for answer in answers)
    assert network.view().counters.requests_failed == 0
    spec = load_spec(resolve(str(network.home / "tiny")))
    rejoin_node(network, name, spec, num_stages=2)
    network.wait(lambda view: num_serving(view) == 4, timeout_s=60, what="its return")


@pytest.mark.timeout(60 + 60 * KILLS)
def test_a_coordinator_killed_at_any_moment_loses_no_request(
    network: LocalNetwork, crowd: Crowd
) -> None:
    rng = random.Random(20)
    before = {node.node_id: node.incarnation for node in network.view().nodes}
    for number in range(KILLS):
        asked = crowd.start()
        moment = (number + rng.random()) / KILLS - 0.2  # below 0: before the first token
        until_sync(
            lambda moment=moment: crowd.has_come(moment),  # type: ignore[misc]
            timeout_s=DONE_S,
            poll_s=0.005,
            what="the moment",
        )
        kill_and_restart_coordinator(network, str(network.home / "tiny"))
        network.wait(lambda view: True, timeout_s=60, what="the coordinator's return")
        after = network.wait(
            lambda view: num_serving(view) == 4, timeout_s=BACK_S, what="all nodes' return"
        )
        crowd.check(asked, timeout_s=DONE_S)
        assert {node.node_id: node.incarnation for node in after.nodes} == before
        network.wait(
            lambda view: all(node.kv_tokens_reserved == 0 for node in view.nodes),
            timeout_s=10,
            what="all KV given back",
        )


def test_a_coordinator_stopped_in_order_lets_running_requests_end(
    network: LocalNetwork, crowd: Crowd
) -> None:
    asked = crowd.start()
    network.wait(
        lambda view: any(n.kv_tokens_reserved > 0 for n in view.nodes),
        timeout_s=20,
        what="streams under way",
    )
    kill_and_restart_coordinator(network, str(network.home / "tiny"), signal.SIGTERM)
    crowd.check(asked, timeout_s=DONE_S)
