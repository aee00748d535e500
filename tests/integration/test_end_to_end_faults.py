"""Real processes under load and real processes that die: a generation goes on where it was."""

import json
import os
import random
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coordinator.core.view import NetworkView
from plait.cli.local_network import LocalNetwork
from plait.sdk import GenerateOptions
from plait.types import FinishReason
from tests.kit.network import (
    client_of,
    kill_and_restart_coordinator,
    num_serving,
    two_tiny_chains,
)
from tests.kit.wait import until_sync

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROMPT = list(range(40, 72))
NUM_TOKENS = 240
BUSY_S = 3.0
"""What a busy machine takes to hear of it."""
GREEDY: GenerateOptions = {"max_tokens": NUM_TOKENS, "temperature": 0.0, "ignore_eos": True}
HELD: GenerateOptions = {
    "max_tokens": NUM_TOKENS,
    "seed": 3,
    "logit_bias": {256: -100.0},  # the end
    "response_format": {"type": "regex", "pattern": "([a-z]{2,5} )+"},
}


@pytest.fixture(scope="module")
def spare_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """Two chains of two nodes each: whoever dies, somebody else holds the same layers."""
    home = tmp_path_factory.mktemp("spare-network")
    with two_tiny_chains(home) as network:
        (model,) = network.view().models
        assert min(model.replicas_per_layer) >= 2
        yield network


def test_many_at_once_draw_what_each_draws_alone(spare_network: LocalNetwork) -> None:
    rng = random.Random(4)
    asked = [
        ([rng.randrange(256) for _ in range(rng.choice([1, 3, 17, 60, 257]))], rng.randrange(1, 40))
        for _ in range(32)
    ]
    with client_of(spare_network) as client, ThreadPoolExecutor(len(asked)) as pool:

        def ask(prompt: list[int], num_tokens: int) -> tuple[int, ...]:
            answer = client.generate(
                prompt, max_tokens=num_tokens, temperature=0.0, ignore_eos=True
            )
            return answer.token_ids

        alone = [ask(*each) for each in asked]
        assert list(pool.map(lambda each: ask(*each), asked)) == alone


def test_a_storm_of_clients_that_leave_frees_all_kv_within_a_second(
    spare_network: LocalNetwork,
) -> None:
    with client_of(spare_network) as client:
        last = client.generate(PROMPT, max_tokens=1, ignore_eos=True).request_id
    # Views are snapshots: one that knows of this request's end knows of all before it.
    until_sync(
        lambda: any(
            r.request_id == last and r.finish_reason for r in spare_network.view().requests
        ),
        timeout_s=10.0,
        what="earlier requests counted",
    )
    before, ended_before = spare_network.view().counters, _num_ended(spare_network)
    with ThreadPoolExecutor(60) as pool:
        (model,) = spare_network.view().models
        left = pool.map(lambda _: _leave_after_a_token(spare_network, model.model_id), range(60))
        assert all(left)
    until_sync(
        lambda: (
            all(node.kv_tokens_reserved == 0 for node in spare_network.view().nodes)
            and spare_network.view().num_queued == 0
        ),
        timeout_s=1.0 + BUSY_S,
        what="all KV given back",
    )
    until_sync(
        lambda: _num_ended(spare_network) - ended_before >= 60,
        timeout_s=1.0 + BUSY_S,
        what="all of them counted",
    )
    after = spare_network.view().counters
    assert after.requests_submitted - before.requests_submitted == 60
    assert _num_ended(spare_network) - ended_before == 60
    assert after.requests_failed == before.requests_failed


def _num_ended(network: LocalNetwork) -> int:
    counters = network.view().counters
    return counters.requests_finished + counters.requests_failed + counters.requests_cancelled


def _leave_after_a_token(network: LocalNetwork, model_id: str) -> bool:
    """Open a stream over HTTP, read its first event, and hang up without a word."""
    profile = network.profile
    host, _, port = profile.http_url.removeprefix("http://").rpartition(":")
    body = json.dumps(
        {"model": model_id, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "stream": True}
    )
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {profile.api_key}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(f"{head}{body}".encode())
        got = b""
        while b"data: " not in got:
            more = client.recv(4096)
            if not more:
                return False
            got += more
    return True


def test_a_killed_node_is_replaced_and_no_token_is_lost_or_repeated(
    spare_network: LocalNetwork,
) -> None:
    """A greedy answer beside it, and one that a grammar holds and a seed draws: that one's last
    stage dies."""
    with client_of(spare_network) as client, ThreadPoolExecutor(1) as pool:
        undisturbed = client.generate(PROMPT, **HELD)
        plain = client.generate(PROMPT, **GREEDY)
        assert len(undisturbed.route) == 2, "no node may hold the whole model here"
        beside = pool.submit(client.generate, PROMPT, **GREEDY)
        stream = client.stream(PROMPT, **HELD)
        drawn: list[int] = []
        killed = ""
        for delta in stream:
            drawn.extend(delta.token_ids)
            if not killed and len(drawn) >= NUM_TOKENS // 10:
                killed = stream.route[-1].display_name
                os.kill(spare_network.nodes[killed].pid, signal.SIGKILL)
        result = stream.result
        assert beside.result(timeout=60).token_ids == plain.token_ids
    assert drawn == list(undisturbed.token_ids)
    assert re.fullmatch("([a-z]{2,5} )+[a-z]{0,5}", result.text)
    assert result.num_attempts == 2
    assert result.finish_reason is FinishReason.LENGTH
    assert len(result.route) == 2
    assert killed not in [hop.display_name for hop in result.route]
    spare_network.children.forget(spare_network.nodes.pop(killed))
    spare_network.wait(
        lambda view: (
            num_serving(view) == 3 and all(node.kv_tokens_reserved == 0 for node in view.nodes)
        ),
        timeout_s=10,
        what="the dead node's departure with all KV given back",
    )


def test_a_killed_coordinator_finds_its_network_again_and_nothing_is_loaded_twice(
    spare_network: LocalNetwork,
) -> None:
    before = spare_network.view()
    kill_and_restart_coordinator(spare_network, str(spare_network.home / "tiny"))
    after = spare_network.wait(
        lambda view: num_serving(view) == num_serving(before),
        timeout_s=120,
        what="the nodes' return",
    )
    assert _loaded(after) == _loaded(before)
    with client_of(spare_network) as client:
        answer = client.generate(PROMPT, max_tokens=8, temperature=0.0, ignore_eos=True)
    assert len(answer.token_ids) == 8


def _loaded(view: NetworkView) -> set[tuple[str, int, tuple[int, int] | None]]:
    """Who holds what, by process: the incarnation changes when a process does."""
    return {
        (node.node_id, node.incarnation, node.span)
        for node in view.nodes
        if node.state == "serving"
    }
