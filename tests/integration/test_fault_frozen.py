"""Nodes of a real network that stand still: their sockets stay open, and nobody reads them."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from plait.cli.local_network import LocalNetwork
from plait.sdk import Client, Stream
from tests.kit.chaos import frozen
from tests.kit.disturbed import ask, disturb, is_idle, pid_of
from tests.kit.network import client_of, num_serving, serving_network
from tests.kit.tiny_model import write_tiny_model
from tests.kit.wait import until_sync

pytestmark = pytest.mark.slow
PROMPT = list(range(40, 72))
NUM_TOKENS = 240
DETECTED_S = 4.0
BACK_S = 3.0
BUSY_S = 3.0
"""What a busy machine takes to run a prefix again, and to say so."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """Two chains of two nodes each."""
    home = tmp_path_factory.mktemp("frozen-network")
    spec = write_tiny_model(home / "tiny")
    with serving_network(home, str(home / "tiny"), spec, num_stages=2, num_spares=2) as network:
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
