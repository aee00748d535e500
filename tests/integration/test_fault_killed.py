"""Nodes of a real network are killed: while they prefill, two at once, the last of a span."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.message import Message

import pytest

from plait.cli.local_network import LocalNetwork
from plait.models import load_spec, resolve
from plait.sdk import Client, Stream
from plait.types import ModelSpec
from tests.kit.chaos import kill
from tests.kit.disturbed import ask, bury, disturb, is_idle, pid_of
from tests.kit.network import client_of, num_serving, rejoin_node, serving_network
from tests.kit.tiny_model import write_tiny_model
from tests.kit.wait import until_sync

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CONTEXT = 8_192
PROMPT = list(range(40, 72))
LONG_PROMPT = [number % 250 for number in range(7_000)]
NUM_TOKENS = 200
BACK_S = 60.0
WAIT_S = 12.0
BUSY_S = 5.0


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """Two chains of two nodes each."""
    home = tmp_path_factory.mktemp("killed-network")
    spec = write_tiny_model(home / "tiny", context_tokens=CONTEXT)
    model = str(home / "tiny")
    options = ("--no-mqtt", "--request-wait-s", str(WAIT_S))
    with serving_network(
        home, model, spec, num_stages=2, num_spares=2, kv_tokens=CONTEXT, telemetry=options
    ) as network:
        yield network


@pytest.fixture
def client(network: LocalNetwork) -> Iterator[Client]:
    with client_of(network) as client:
        yield client


def bring_back(network: LocalNetwork, *names: str) -> None:
    for name in names:
        rejoin_node(network, name, tiny(network), num_stages=2, kv_tokens=CONTEXT)
    network.wait(lambda view: num_serving(view) == 4, timeout_s=BACK_S, what="four nodes")


def test_a_node_killed_while_it_prefills_costs_one_more_prefill(
    network: LocalNetwork, client: Client
) -> None:
    """Asked undisturbed afterwards: a prompt that was here before is no prefill to be killed in."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, client, LONG_PROMPT, 8)
        view = network.wait(
            lambda view: any(request.state == "prefill" for request in view.requests),
            timeout_s=20,
            what="a prompt under way",
        )
        last = view.requests[0].route[-1].node_id
        (name,) = [node.display_name for node in view.nodes if node.node_id == last]
        kill(network.nodes[name].pid)
        answer = asked.result(60)
    bury(network, name)
    bring_back(network, name)
    assert answer.num_attempts == 2
    assert answer.token_ids == ask(client, LONG_PROMPT, 8).token_ids
    until_sync(lambda: is_idle(network), what="all KV given back")


def test_both_nodes_of_a_chain_killed_at_once_are_replaced_in_one_round(
    network: LocalNetwork, client: Client
) -> None:
    alone = ask(client, PROMPT, NUM_TOKENS)
    killed: list[str] = []

    def kill_all(stream: Stream) -> None:
        for hop in stream.route:
            kill(pid_of(network, hop))
            killed.append(hop.display_name)

    seen = disturb(client, PROMPT, NUM_TOKENS, at_token=20, then=kill_all)
    assert len(killed) == 2
    assert seen.ids == alone.token_ids
    assert seen.whole.num_attempts == 2
    assert seen.pause_s <= 2.0 + BUSY_S
    bury(network, *killed)
    until_sync(lambda: is_idle(network), what="all KV given back")


def test_the_last_holder_of_a_span_is_waited_for_and_then_said_to_be_missing(
    network: LocalNetwork, client: Client
) -> None:
    """Two nodes are left, one for each half."""
    alone = ask(client, PROMPT, NUM_TOKENS)
    killed: list[str] = []

    def kill_last(stream: Stream) -> None:
        killed.append(stream.route[-1].display_name)
        kill(pid_of(network, stream.route[-1]))
        bury(network, killed[0])
        rejoin_node(network, killed[0], tiny(network), num_stages=2, kv_tokens=CONTEXT)

    seen = disturb(client, PROMPT, NUM_TOKENS, at_token=20, then=kill_last)
    assert seen.ids == alone.token_ids
    assert seen.whole.route[-1].display_name == killed[0], "nobody else holds that half"

    kill(network.nodes[killed[0]].pid)
    bury(network, killed[0])
    asked_s = time.perf_counter()
    status, headers, body = post(network, {"prompt": PROMPT, "max_tokens": 4})
    assert status == 503
    assert int(headers["retry-after"]) >= 1
    assert json.loads(body)["error"]["code"] == "span_unavailable"
    assert time.perf_counter() - asked_s <= WAIT_S + BUSY_S
    rejoin_node(network, killed[0], tiny(network), num_stages=2, kv_tokens=CONTEXT)
    network.wait(lambda view: num_serving(view) == 2, timeout_s=BACK_S, what="its return")
    assert ask(client, PROMPT, 8).token_ids == alone.token_ids[:8]


def tiny(network: LocalNetwork) -> ModelSpec:
    return load_spec(resolve(str(network.home / "tiny")))


def post(network: LocalNetwork, body: dict[str, object]) -> tuple[int, dict[str, str], bytes]:
    """A completion over HTTP, as any OpenAI client asks for it."""
    profile = network.profile
    (model,) = network.view().models
    request = urllib.request.Request(
        f"{profile.http_url}/v1/completions",
        data=json.dumps({"model": model.model_id, **body}).encode(),
        headers={
            "authorization": f"Bearer {profile.api_key}",
            "content-type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, _lower(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, _lower(error.headers), error.read()


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
