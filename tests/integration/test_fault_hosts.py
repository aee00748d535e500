"""A network whose every part is a host of its own, and packets that are lost between them."""

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator.core.view import NetworkView
from plait.cli.local_network import LocalNetwork, NodePlan, local_network
from plait.sdk import Client, Hop, Stream
from tests.kit import leaving_client
from tests.kit.chaos import FAKETIME, skewed_clock
from tests.kit.disturbed import ask, disturb, is_idle
from tests.kit.memory import cap_for_stages
from tests.kit.netns import Host, hosts, needs_hosts
from tests.kit.network import KV_TOKENS, client_of, num_serving
from tests.kit.tiny_model import write_tiny_model
from tests.kit.wait import until_sync
from tests.kit.warm import WarmChildren

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_hosts]
PROMPT = list(range(40, 72))
NUM_TOKENS = 240
LOST_S = 4.0
FREED_S = 5.0
FLAP_S = 2.0
ASK_S = 0.1
FLAPPING_S = float(os.environ.get("PLAIT_FLAPPING_S", "24"))
BROKEN_MAX = 2 + math.ceil(math.log2(FLAPPING_S))
"""Rests of 1, 2, 4 … 60 s, and the first break of another pair."""
STALL_S = LOST_S + 3.0
"""A fault is known after 4 s; on a busy machine the rest takes a while."""
NAMES = ("node 1", "node 2", "node 3", "node 4")
SERVE_S = 300.0
LATE = skewed_clock(-600.0) if FAKETIME else ()
"""The clock of one node is ten minutes behind, which no request may notice."""


@dataclass(frozen=True, slots=True)
class Far:
    """A network and where its parts are."""

    network: LocalNetwork
    hosts: dict[str, Host]
    client: Client

    def host(self, hop: Hop) -> Host:
        return self.hosts[_host_name(hop.display_name)]


def _host_name(node_name: str) -> str:
    return node_name.replace(" ", "")


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    """Two chains of two nodes each, on five hosts, and a sixth for a client."""
    home = tmp_path_factory.mktemp("far-network")
    spec = write_tiny_model(home / "tiny", context_tokens=2_048)
    options = ("--kv-tokens", str(KV_TOKENS), "--weights", "fp32", "--no-mqtt")
    cap = cap_for_stages(spec, 2, KV_TOKENS)
    with hosts("coordinator", "client", *map(_host_name, NAMES)) as made:
        at = made["coordinator"]
        with local_network(
            home=home,
            model=str(home / "tiny"),
            num_nodes=2,
            options=options,
            host=at.address,
            prefix=at.prefix,
            start=WarmChildren,
        ) as network:
            for number, name in enumerate(NAMES, 1):
                host = made[_host_name(name)]
                network.start_node(
                    NodePlan(
                        name=name,
                        memory_bytes=cap,
                        listen=f"{host.address}:0",
                        prefix=(*host.prefix, *(LATE if number == 2 else ())),
                    )
                )
                if number >= 2:
                    network.wait(
                        lambda view, number=number: num_serving(view) == number,  # type: ignore[misc]
                        timeout_s=SERVE_S,
                        what=f"{number} serving nodes",
                    )
            with client_of(network) as client:
                yield Far(network, made, client)


@pytest.fixture(autouse=True)
def healed(far: Far) -> Iterator[None]:
    """Afterwards all is well again."""
    yield
    for host in far.hosts.values():
        host.heal()
    far.network.wait(
        lambda view: num_serving(view) == len(NAMES), timeout_s=30, what="all nodes' return"
    )
    until_sync(lambda: is_idle(far.network), what="all KV given back")


def test_two_nodes_that_cannot_reach_each_other_are_not_paired(far: Far) -> None:
    alone = ask(far.client, PROMPT, NUM_TOKENS)
    parted: list[Hop] = []  # of the stream's own chain, which need not be that of `alone`

    def part(stream: Stream) -> None:
        first, last = stream.route
        parted.extend((first, last))
        far.host(first).part_from(far.host(last))

    seen = disturb(far.client, PROMPT, NUM_TOKENS, at_token=20, then=part)
    assert seen.pause_s <= STALL_S
    assert seen.ids == alone.token_ids
    assert {hop.node_id for hop in seen.whole.route} != {hop.node_id for hop in parted}
    assert num_serving(far.network.view()) == len(NAMES), "both see the coordinator"
    for _ in range(4):
        again = ask(far.client, PROMPT, 8)
        assert set(parted) != set(again.route)
        assert again.num_attempts == 1


def test_a_way_that_is_cut_in_one_direction_is_left(far: Far) -> None:
    alone = ask(far.client, PROMPT, NUM_TOKENS)

    def part(stream: Stream) -> None:
        first, last = stream.route
        far.host(last).drop_from(far.host(first))

    seen = disturb(far.client, PROMPT, NUM_TOKENS, at_token=20, then=part)
    assert seen.pause_s <= STALL_S
    assert seen.ids == alone.token_ids
    assert num_serving(far.network.view()) == len(NAMES)


def test_a_node_cut_from_the_coordinator_alone_is_lost_and_comes_back_as_it_was(far: Far) -> None:
    before = {node.node_id: node.incarnation for node in far.network.view().nodes}
    alone = ask(far.client, PROMPT, NUM_TOKENS)
    cut: list[Hop] = []
    with ThreadPoolExecutor(1) as pool:
        lost: list[Future[NetworkView]] = []

        def part(stream: Stream) -> None:
            cut.append(stream.route[-1])
            far.host(cut[0]).part_from(far.hosts["coordinator"])
            lost.append(
                pool.submit(
                    far.network.wait,
                    lambda view: num_serving(view) == len(NAMES) - 1,
                    timeout_s=LOST_S,
                    what="its loss",
                )
            )

        seen = disturb(far.client, PROMPT, NUM_TOKENS, at_token=20, then=part)
        lost[0].result()
    assert seen.ids == alone.token_ids
    assert seen.pause_s <= STALL_S
    assert cut[0] not in ask(far.client, PROMPT, 8).route
    far.host(cut[0]).heal()
    far.hosts["coordinator"].heal()
    view = far.network.wait(
        lambda view: num_serving(view) == len(NAMES), timeout_s=10, what="its return"
    )
    assert {node.node_id: node.incarnation for node in view.nodes} == before


def test_a_link_that_flaps_costs_ever_fewer_retries_and_no_request(far: Far) -> None:
    """Two seconds up, two down. Its node rests twice as long after each break."""
    alone = ask(far.client, PROMPT, 8)
    host, is_over = far.host(alone.route[-1]), threading.Event()

    def flap() -> None:
        while not is_over.is_set():
            host.vanish()
            is_over.wait(FLAP_S)
            host.heal()
            is_over.wait(FLAP_S)

    num_broken, num_asked, until_s = 0, 0, time.perf_counter() + FLAPPING_S
    with ThreadPoolExecutor(1) as pool:
        flapping = pool.submit(flap)
        try:
            while time.perf_counter() < until_s:
                answer = ask(far.client, PROMPT, 8)
                assert answer.token_ids == alone.token_ids
                num_asked += 1
                num_broken += answer.num_attempts > 1
                is_over.wait(ASK_S)
        finally:
            is_over.set()
            flapping.result()
    assert num_broken <= BROKEN_MAX, f"of {num_asked}"


def test_a_client_that_vanishes_without_a_word_frees_its_kv(far: Far, tmp_path: Path) -> None:
    profile, host = far.network.profile, far.hosts["client"]
    (tmp_path / "ca.pem").write_text(profile.ca_pem)
    command = [sys.executable, leaving_client.__file__, profile.address, profile.api_key]
    command += [str(tmp_path / "ca.pem"), "900"]
    with subprocess.Popen([*host.prefix, *command], stdout=subprocess.PIPE, text=True) as client:
        try:
            assert client.stdout is not None and client.stdout.readline() == "streaming\n"
            until_sync(lambda: not is_idle(far.network), what="KV that is held for it")
            host.vanish()
            until_sync(lambda: is_idle(far.network), timeout_s=FREED_S, what="its KV given back")
        finally:
            client.kill()
