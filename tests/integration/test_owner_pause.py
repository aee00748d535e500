"""Owner first, with real processes: a game starts on a machine that serves."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future

import psutil
import pytest

from coordinator.core.view import NodeView
from node.agent.local_status import read_local_status
from node.ports import NodePhase
from plait.cli.children import Child
from plait.cli.local_network import LocalNetwork
from plait.clock import SystemClock
from plait.models import load_spec, resolve
from tests.kit.crowd import Answered, Crowd
from tests.kit.network import client_of, rejoin_node, serving_network
from tests.kit.tiny_model import write_tiny_model
from tests.kit.wait import until_sync

pytestmark = pytest.mark.slow
HARDWARE = "hardware.json"
NUM_STREAMS = 4
NUM_TOKENS = 120
PAUSED_S = 1.0
FREED_S = 5.0
DONE_S = 90.0


class Owner:
    """Of one node: what its programs do, and what it types."""

    def __init__(self, network: LocalNetwork, name: str) -> None:
        self.network = network
        self.name = name
        self.home = network.home / name.replace(" ", "-")
        self.folder = self.home / "nodes" / "default"

    def see(self, **reading: float) -> None:
        draft = self.folder / "hardware.new"
        draft.write_text(json.dumps(reading))
        draft.replace(self.folder / HARDWARE)

    def command(self, *words: str) -> str:
        environment = {"PLAIT_HOME": str(self.home)}
        child = self.network.children.start("owner", ["node", *words], environment)
        assert child.process.wait(20.0) == 0, child.tail()
        self.network.children.forget(child)
        return child.log_path.read_text("utf-8")

    @property
    def child(self) -> Child:
        return self.network.nodes[self.name]

    @property
    def phase(self) -> NodePhase | None:
        status = read_local_status(self.folder, SystemClock())
        return status.phase if status is not None else None

    @property
    def resident_bytes(self) -> int:
        return int(psutil.Process(self.child.pid).memory_info().rss)

    def wait_state(self, state: str, *, timeout_s: float) -> NodeView:
        """As the coordinator shows it."""
        view = self.network.wait(
            lambda view: any(n.display_name == self.name and n.state == state for n in view.nodes),
            timeout_s=timeout_s,
            what=f"{self.name} {state}",
        )
        return self.network.node_view(view, self.name)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """A chain of two nodes, and a third that holds what one of them holds. All have owners."""
    home = tmp_path_factory.mktemp("owners")
    spec = write_tiny_model(home / "tiny", times_wide=4)
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("PLAIT_HARDWARE_FILE", HARDWARE)
        environ.setenv("PLAIT_NODE_PAUSE_WHEN_OTHER_GPU_PROCESS_MB", "500")
        environ.setenv("PLAIT_NODE_PAUSE_WHEN_SETTLE_S", "2")
        with serving_network(home, str(home / "tiny"), spec, num_stages=2, num_spares=1) as network:
            yield network


def streams(network: LocalNetwork, crowd: Crowd) -> "tuple[list[Future[Answered]], Owner]":
    """Streams, and the owner of a node that some of them run over and another one can replace."""
    asked = crowd.start()
    while not all(stream.done() for stream in asked):
        nodes = network.view().nodes
        held = Counter(node.span for node in nodes)
        for node in nodes:
            if held[node.span] > 1 and node.kv_tokens_reserved > 0:
                return asked, Owner(network, node.display_name)
        time.sleep(0.02)
    raise AssertionError("no stream was seen")


@pytest.fixture(scope="module")
def players() -> list[Owner]:
    """Who played in the first test; the others go on with the same node."""
    return []


def test_a_game_gets_the_machine_and_the_requests_go_on_elsewhere(
    network: LocalNetwork, players: list[Owner]
) -> None:
    with (
        client_of(network) as client,
        Crowd(client, num=NUM_STREAMS, num_tokens=NUM_TOKENS) as crowd,
    ):
        asked, owner = streams(network, crowd)
        players.append(owner)
        before_bytes, pid = owner.resident_bytes, owner.child.pid
        start_s = time.perf_counter()
        owner.see(other_gpu_process_mb=1024)
        until_sync(lambda: owner.phase is NodePhase.PAUSED, timeout_s=10, what="a pause")
        paused_s = time.perf_counter() - start_s
        until_sync(
            lambda: owner.resident_bytes < before_bytes / 2, timeout_s=20, what="memory back"
        )
        freed_s = time.perf_counter() - start_s
        crowd.check(asked, timeout_s=DONE_S)
    assert (owner.child.pid, owner.child.is_running) == (pid, True)
    assert paused_s <= PAUSED_S, (paused_s, freed_s)
    assert freed_s <= FREED_S, (paused_s, freed_s)
    assert network.view().counters.requests_failed == 0
    assert "1024 MiB of GPU memory" in owner.wait_state("paused", timeout_s=15).span_reason
    assert "1024 MiB of GPU memory" in owner.command("status")


def test_it_serves_again_when_the_game_is_over_for_a_while(players: list[Owner]) -> None:
    (owner,) = players
    owner.see(other_gpu_process_mb=10)
    owner.wait_state("serving", timeout_s=60)


def test_a_pause_lasts_over_a_restart_until_it_is_lifted(players: list[Owner]) -> None:
    (owner,) = players
    network = owner.network
    assert "until" in owner.command("pause", "2h")
    owner.wait_state("paused", timeout_s=15)
    child = network.nodes.pop(owner.name)
    child.process.terminate()
    assert child.process.wait(10.0) == 0
    network.children.forget(child)
    rejoin_node(network, owner.name, load_spec(resolve(str(network.home / "tiny"))), num_stages=2)
    view = owner.wait_state("paused", timeout_s=20)
    assert "its owner paused it until" in view.span_reason
    owner.command("resume")
    owner.wait_state("serving", timeout_s=60)
