"""A node of a real network that runs for a tenth of the time only is left, not punished; one with
other weights or of another version is never in a chain."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from coordinator.core.view import NodeView
from node.agent.identity import load_credentials
from node.transport.server import channel_to_coordinator
from plait.cli.local_network import LocalNetwork, NodePlan
from plait.sdk import Client, Completion
from plait.wire.v1 import control_pb2, control_pb2_grpc
from tests.kit.chaos import stuttering
from tests.kit.disturbed import ask, is_idle, pid_of
from tests.kit.memory import cap_for_stages
from tests.kit.network import KV_TOKENS, SERVE_S, client_of, num_serving, two_tiny_chains
from tests.kit.tiny_model import write_tiny_model
from tests.kit.wait import until_sync

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROMPT = list(range(40, 72))
NUM_TOKENS = 240
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


def test_a_node_with_other_weights_is_told_so_and_is_in_no_chain(
    network: LocalNetwork, client: Client
) -> None:
    """The file is replaced, so that those who read the old one still do. Given the right one again,
    the node serves."""
    before = ask(client, PROMPT, 8).token_ids
    spec = write_tiny_model(network.home / "other", seed=8)
    weights = network.home / "tiny" / "model.safetensors"
    right = weights.rename(network.home / "right.safetensors")
    (network.home / "other" / weights.name).replace(weights)
    cap = cap_for_stages(spec, 2, KV_TOKENS)
    stranger = network.start_node(NodePlan(name="stranger", memory_bytes=cap))
    view = network.wait(
        lambda view: any(is_refused(node) for node in view.nodes),
        timeout_s=SERVE_S,
        what="the stranger's refusal",
    )
    (refused,) = (node for node in view.nodes if node.display_name == "stranger")
    assert "are not those the network serves" in refused.last_error, refused.last_error
    assert num_serving(view) == 4
    for _ in range(8):
        answer = ask(client, PROMPT, 8)
        assert answer.token_ids == before
        assert "stranger" not in [hop.display_name for hop in answer.route]
    assert stranger.process.poll() is None, "it lives"
    right.replace(weights)
    network.wait(lambda view: num_serving(view) == 5, timeout_s=SERVE_S, what="five nodes")


def is_refused(node: NodeView) -> bool:
    return node.display_name == "stranger" and bool(node.last_error)


def test_an_older_version_of_an_enrolled_node_is_refused_with_the_one_that_it_needs(
    network: LocalNetwork,
) -> None:
    (papers,) = network.home.glob("stranger/nodes/*/node.json")
    code, words = asyncio.run(say_hello(papers.parent, version=0))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "this node speaks protocol 0, this network 2 to" in words
    assert num_serving(network.view()) == 5, "the process that runs is not disturbed"


async def say_hello(home: Path, *, version: int) -> tuple[grpc.StatusCode, str]:
    """How the coordinator ends the control stream of a node that says this."""
    own = load_credentials(home)
    channel = channel_to_coordinator(own.node_address, current=lambda: own.tls, ca_pem=own.ca_pem)
    async with channel:
        call = control_pb2_grpc.ControlServiceStub(channel).Attach()
        hello = control_pb2.Hello(protocol_version=version, addresses=["127.0.0.1:9"])
        await call.write(control_pb2.NodeReport(incarnation=1, hello=hello))
        try:
            await call.read()
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
    raise AssertionError("the coordinator welcomed it")
