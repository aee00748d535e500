"""Owner first, with real processes: a game starts on a machine that serves."""

import json
import time
from collections.abc import Iterator

import psutil
import pytest

from coordinator.core.view import NetworkView
from node.agent.local_status import LocalStatus, read_local_status
from node.ports import NodePhase
from plait.cli.children import Child
from plait.cli.local_network import LocalNetwork
from plait.clock import SystemClock
from tests.kit.crowd import Crowd
from tests.kit.memory import cap_for_stages
from tests.kit.network import KV_TOKENS, client_of, num_serving, serving_network
from tests.kit.tiny_model import write_tiny_model

pytestmark = pytest.mark.slow
NAME = "attic"
NUM_STREAMS = 4
NUM_TOKENS = 150
PAUSED_S = 1.0
FREED_S = 5.0
DONE_S = 90.0


class Attic:
    """A node whose machine the test plays: `hardware` is what its owner's programs do."""

    def __init__(self, network: LocalNetwork, cap_bytes: int) -> None:
        self.network = network
        self.home = network.home / NAME
        self.hardware = network.home / "hardware.json"
        self._cap_bytes = cap_bytes
        self.see(other_gpu_process_mb=0)
        self.child = self.start()

    def see(self, **reading: float) -> None:
        draft = self.hardware.with_suffix(".new")
        draft.write_text(json.dumps(reading))
        draft.replace(self.hardware)

    def start(self) -> Child:
        environment = {
            "PLAIT_HOME": str(self.home),
            "PLAIT_TOKEN": self.network.create_token(NAME),
            "PLAIT_HARDWARE_FILE": str(self.hardware),
            "OMP_NUM_THREADS": "1",
        }
        arguments = ["node", "join", self.network.profile.address, "--name", NAME]
        arguments += ["--listen", "127.0.0.1:0", "--threads", "1", "--device", "cpu"]
        arguments += ["--memory", f"{self._cap_bytes}B", "--log-level", "info"]
        arguments += ["--set", "pause_when.other_gpu_process_mb=500"]
        self.child = self.network.children.start(NAME, arguments, environment)
        return self.child

    def command(self, *words: str) -> str:
        child = self.network.children.start(
            "owner", ["node", *words], {"PLAIT_HOME": str(self.home)}
        )
        assert child.process.wait(20.0) == 0, child.tail()
        self.network.children.forget(child)
        return child.log_path.read_text("utf-8")

    @property
    def status(self) -> LocalStatus | None:
        return read_local_status(self.home / "nodes" / "default", SystemClock())

    @property
    def resident_bytes(self) -> int:
        return int(psutil.Process(self.child.pid).memory_info().rss)

    def wait_for(self, phase: NodePhase, *, timeout_s: float) -> float:
        """Seconds until the node says so."""
        start_s = time.perf_counter()
        while (status := self.status) is None or status.phase is not phase:
            assert time.perf_counter() - start_s < timeout_s, (status, self.child.tail())
            time.sleep(0.01)
        return time.perf_counter() - start_s

    def wait_state(self, state: str, *, timeout_s: float) -> NetworkView:
        return self.network.wait(
            lambda view: any(n.display_name == NAME and n.state == state for n in view.nodes),
            timeout_s=timeout_s,
            what=f"{NAME} {state}",
        )


@pytest.fixture(scope="module")
def attic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attic]:
    """Two chains of two nodes; the attic is one of the four."""
    home = tmp_path_factory.mktemp("owner")
    spec = write_tiny_model(home / "tiny", times_wide=4)
    with serving_network(home, str(home / "tiny"), spec, num_stages=2, num_spares=1) as network:
        cap = cap_for_stages(spec, 2, KV_TOKENS)
        assert cap is not None
        attic = Attic(network, cap)
        network.wait(lambda view: num_serving(view) == 4, timeout_s=60, what="the attic")
        yield attic


def test_a_game_gets_the_machine_and_the_requests_go_on_elsewhere(attic: Attic) -> None:
    network = attic.network
    with (
        client_of(network) as client,
        Crowd(client, num=NUM_STREAMS, num_tokens=NUM_TOKENS) as crowd,
    ):
        asked = crowd.start()
        network.wait(
            lambda view: network.node_view(view, NAME).kv_tokens_reserved > 0,
            timeout_s=20,
            what="a stream over the attic",
        )
        before_bytes, pid = attic.resident_bytes, attic.child.pid
        start_s = time.perf_counter()
        attic.see(other_gpu_process_mb=1024)
        paused_s = attic.wait_for(NodePhase.PAUSED, timeout_s=10.0)
        while attic.resident_bytes > before_bytes / 2:
            assert time.perf_counter() - start_s < 2 * FREED_S, attic.child.tail()
            time.sleep(0.02)
        freed_s = time.perf_counter() - start_s
        crowd.check(asked, timeout_s=DONE_S)
    assert (attic.child.pid, attic.child.is_running) == (pid, True)
    assert paused_s <= PAUSED_S
    assert freed_s <= FREED_S
    assert network.view().counters.requests_failed == 0
    view = attic.wait_state("paused", timeout_s=15)
    assert "1024 MiB of GPU memory" in network.node_view(view, NAME).span_reason
    assert "1024 MiB of GPU memory" in attic.command("status")


def test_it_serves_again_when_the_game_is_over_for_a_while(attic: Attic) -> None:
    attic.see(other_gpu_process_mb=10)
    attic.wait_state("serving", timeout_s=60)


def test_a_pause_lasts_over_a_restart_until_it_is_lifted(attic: Attic) -> None:
    assert "until" in attic.command("pause", "2h")
    attic.wait_state("paused", timeout_s=15)
    attic.child.process.terminate()
    assert attic.child.process.wait(10.0) == 0
    attic.network.children.forget(attic.child)
    attic.start()
    view = attic.wait_state("paused", timeout_s=20)
    assert "its owner paused it until" in attic.network.node_view(view, NAME).span_reason
    attic.command("resume")
    attic.wait_state("serving", timeout_s=60)
