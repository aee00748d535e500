"""A real network whose nodes stand still, which is asked for more than it has room for, and where
two processes claim to be the same node."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack

import pytest

from plait.cli.local_network import LocalNetwork
from plait.errors import OverloadedError
from plait.models import load_spec, resolve
from plait.sdk import Client, Stream
from tests.kit.chaos import frozen
from tests.kit.disturbed import ask, disturb, greedy, is_idle, pid_of
from tests.kit.network import client_of, num_serving, rejoin_node, two_tiny_chains
from tests.kit.wait import until_sync

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROMPT = list(range(40, 72))
NUM_TOKENS = 240
DETECTED_S = 4.0
BACK_S = 3.0
TURNED_AWAY_S = 5.0
LOOK_S = 0.05
BUSY_S = 3.0
"""What a busy machine takes to run a prefix again, and to say so."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """Two chains of two nodes each."""
    home = tmp_path_factory.mktemp("frozen-network")
    with two_tiny_chains(home) as network:
        yield network


@pytest.fixture
def client(network: LocalNetwork) -> Iterator[Client]:
    with client_of(network) as client:
        yield client


@pytest.mark.parametrize("at", [0, -1], ids=["first", "last"])
def test_a_frozen_node_is_replaced_and_comes_back_when_it_thaws(
    network: LocalNetwork, client: Client, at: int
) -> None:
    alone = ask(client, PROMPT, NUM_TOKENS)
    before = {node.node_id: node.incarnation for node in network.view().nodes}
    with ExitStack() as frost:

        def freeze(stream: Stream) -> None:
            frost.enter_context(frozen(pid_of(network, stream.route[at])))

        seen = disturb(client, PROMPT, NUM_TOKENS, at_token=20, then=freeze)
        network.wait(
            lambda view: num_serving(view) == 3, timeout_s=DETECTED_S, what="the frozen one's loss"
        )
    assert seen.ids == alone.token_ids
    assert seen.whole.num_attempts == 2
    assert seen.pause_s <= DETECTED_S + BUSY_S
    view = network.wait(
        lambda view: num_serving(view) == 4, timeout_s=BACK_S, what="its return after the thaw"
    )
    assert {node.node_id: node.incarnation for node in view.nodes} == before
    until_sync(lambda: is_idle(network), what="all KV given back")


def test_twice_what_kv_there_is_for_waits_and_what_is_admitted_is_never_given_up(
    network: LocalNetwork, client: Client
) -> None:
    view = network.view()
    room = sum(node.kv_tokens_max for node in view.nodes) // 2
    num = 2 * room // (len(PROMPT) + NUM_TOKENS) + 1
    alone = ask(client, PROMPT, NUM_TOKENS)

    def answered(_: int) -> bool:
        """False: refused before the first token, as a busy machine's queue may be."""
        stream = greedy(client, PROMPT, NUM_TOKENS)
        try:
            first = next(stream)
        except OverloadedError as error:
            assert error.code == "kv_full"
            return False
        ids = [*first.token_ids, *(token_id for delta in stream for token_id in delta.token_ids)]
        return tuple(ids) == alone.token_ids

    with ThreadPoolExecutor(num) as pool:
        asked = [pool.submit(answered, number) for number in range(num)]
        while wait(asked, timeout=LOOK_S).not_done:
            view = network.view()
            assert all(node.kv_tokens_reserved <= node.kv_tokens_max for node in view.nodes)
        assert sum(each.result() for each in asked) >= num // 2
    until_sync(lambda: is_idle(network), what="all KV given back")


def test_a_copied_identity_serves_once_and_the_older_process_is_sent_away(
    network: LocalNetwork,
) -> None:
    before = {node.node_id: node.incarnation for node in network.view().nodes}
    name = next(iter(network.nodes))
    first = network.nodes[name]
    shutil.copytree(network.home / name.replace(" ", "-"), network.home / "copy")
    seen: list[int] = []
    rejoin_node(network, "copy", load_spec(resolve(str(network.home / "tiny"))), num_stages=2)
    network.children.children.remove(first)  # it will end, which is what is asked for
    view = network.wait(
        lambda view: (
            num_serving(view) == len(before)
            and {node.node_id: node.incarnation for node in view.nodes} != before
        ),
        timeout_s=60,
        what="the newer one's service",
        watch=lambda view: seen.append(len({node.node_id for node in view.nodes})),
    )
    assert max(seen) == len(before) == len(view.nodes)
    assert first.process.wait(TURNED_AWAY_S) not in (0, None)
    assert "one identity serves once" in " ".join(first.tail().split())
