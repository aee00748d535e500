"""A node of a real network that runs for a tenth of the time only: it is left, not punished."""

import time
from collections.abc import Iterator

import pytest

from plait.cli.local_network import LocalNetwork
from plait.sdk import Client, Completion
from tests.kit.chaos import stuttering
from tests.kit.disturbed import ask, is_idle, pid_of
from tests.kit.network import client_of, num_serving, two_tiny_chains
from tests.kit.wait import until_sync

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROMPT = list(range(40, 72))
NUM_TOKENS = 440
SHUNNED_S = 10.0
NUM_AFTER = 20
SHUNNED_MIN = 18
NUM_OWN = 20
BACK_S = 20.0


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """Two chains of two nodes each."""
    home = tmp_path_factory.mktemp("slow-network")
    with two_tiny_chains(home) as network:
        yield network


@pytest.fixture
def client(network: LocalNetwork) -> Iterator[Client]:
    with client_of(network) as client:
        yield client


def one_by_one(client: Client) -> Completion:
    """A long answer without guesses, which would take it there in few trips."""
    return client.generate(
        PROMPT, max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True, draft_tokens=0
    )


def test_a_node_that_is_held_up_between_its_steps_is_left_and_comes_back(
    network: LocalNetwork, client: Client
) -> None:
    """50 ms of 500, by SIGSTOP and SIGCONT: each of its steps is as quick as ever."""
    before = {node.node_id: node.incarnation for node in network.view().nodes}
    alone = one_by_one(client)
    victim = alone.route[-1]
    with stuttering(pid_of(network, victim), runs_s=0.05, stops_s=0.45):
        long = one_by_one(client)
        num_asked, until_s = 0, time.perf_counter() + SHUNNED_S
        while num_asked < NUM_OWN and time.perf_counter() < until_s:
            num_asked += victim in ask(client, PROMPT, 2).route
        routes = [ask(client, PROMPT, 2).route for _ in range(NUM_AFTER)]
    assert long.token_ids == alone.token_ids
    assert victim not in long.route, "it went on elsewhere"
    assert sum(victim not in route for route in routes) >= SHUNNED_MIN
    view = network.wait(
        lambda view: num_serving(view) == len(before), timeout_s=BACK_S, what="all four nodes"
    )
    assert {node.node_id: node.incarnation for node in view.nodes} == before
    until_sync(lambda: is_idle(network), what="all KV given back")
