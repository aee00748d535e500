"""Tensor-parallel groups as nodes of a real network: ranks are processes, over gloo on loopback."""

import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest
import torch

from node.engine.device import pick_device
from node.engine.kv_cache import KvPool
from node.engine.loader import load_stage
from node.engine.parallel.leading import RANK_BUFFER_BYTES
from node.engine.runner import Runner
from plait.cli.local_network import LocalNetwork, NodePlan, local_network
from plait.models import load_spec, open_source, resolve
from plait.sdk import Stream
from plait.types import DType
from tests.kit.disturbed import ask, bury, disturb
from tests.kit.memory import cap_for_stages
from tests.kit.network import KV_TOKENS, client_of, num_serving
from tests.kit.tiny_model import write_tiny_model
from tests.kit.wait import until_sync
from tests.kit.warm import WarmChildren
from tests.unit.engine.kit import ids_item, make_sequence

pytestmark = pytest.mark.slow
SERVE_S = 90.0
PROMPT = list(range(40, 60))
NUM_TOKENS = 64
GROUP = ("--tensor-parallel", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tensor-parallel") / "tiny"
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def alone(model: Path) -> tuple[int, ...]:
    """What one process answers, greedily."""
    source, cpu = open_source(resolve(str(model))), pick_device("cpu", DType.FLOAT32)
    spec = load_spec(resolve(str(model)))
    stage = load_stage(
        source,
        spec,
        spec.whole,
        cpu,
        num_positions=512,
        cached_rows=64,
        progress=lambda _done, _total: None,
    )
    pool = KvPool(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        num_slots=512,
        device=cpu,
    )
    runner = Runner(stage, pool, cpu)
    sequence = make_sequence(spec.whole, runs=((0, 512),), kv_tokens=512)
    ids: list[int] = []
    step, position = PROMPT, 0
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            item = ids_item(sequence, position, step)
            (rows,) = runner.forward([item], [runner.input_rows(item)])
            position += len(step)
            step = [int(stage.logits(rows[-1:])[0].argmax())]
            ids += step
    runner.close()
    return tuple(ids)


def coordinator_of(home: Path, model: Path, num_nodes: int) -> AbstractContextManager[LocalNetwork]:
    options = ("--no-mqtt", "--kv-tokens", str(KV_TOKENS), "--weights", "fp32")
    return local_network(
        home=home, model=str(model), num_nodes=num_nodes, options=options, start=WarmChildren
    )


def ranks_of(network: LocalNetwork, name: str) -> list[int]:
    """The other ranks that a node has started."""
    children = psutil.Process(network.nodes[name].pid).children()
    return [child.pid for child in children if "node.rank" in child.cmdline()]


def test_a_chain_of_groups_and_a_plain_node_answers_as_one_process(
    tmp_path: Path, model: Path, alone: tuple[int, ...]
) -> None:
    spec = load_spec(resolve(str(model)))
    cap = cap_for_stages(spec, 3, KV_TOKENS)
    assert cap is not None
    with coordinator_of(tmp_path, model, 3) as network:
        for name, options in (("first", GROUP), ("plain", ()), ("last", GROUP)):
            memory = cap + (RANK_BUFFER_BYTES if options else 0)
            network.start_node(NodePlan(name=name, memory_bytes=memory, options=options))
        network.wait(lambda view: num_serving(view) == 3, timeout_s=SERVE_S, what="three nodes")
        assert len(ranks_of(network, "first")) == len(ranks_of(network, "last")) == 1
        with client_of(network) as client:
            answer = ask(client, PROMPT, NUM_TOKENS)
        assert len(answer.route) == 3
        assert answer.token_ids == alone
        groups = [network.nodes[name].pid for name in ("first", "last")]
        ranks = [pid for name in ("first", "last") for pid in ranks_of(network, name)]
        os.kill(groups[0], signal.SIGKILL)
        bury(network, "first")
        until_sync(lambda: not psutil.pid_exists(ranks[0]), what="a rank ends with its node")
    assert not psutil.pid_exists(ranks[1]), "and with one that leaves in order"


def test_a_killed_rank_moves_its_requests_and_ends_its_node(
    tmp_path: Path, model: Path, alone: tuple[int, ...]
) -> None:
    with coordinator_of(tmp_path, model, 1) as network:
        for number, name in enumerate(("one", "other"), start=1):
            network.start_node(NodePlan(name=name, options=GROUP))
            network.wait(
                lambda view, number=number: num_serving(view) == number,  # type: ignore[misc]
                timeout_s=SERVE_S,
                what=f"{number} groups",
            )
        hit: list[str] = []

        def kill_rank(stream: Stream) -> None:
            (hop,) = stream.route
            hit.append(hop.display_name)
            (rank,) = ranks_of(network, hop.display_name)
            os.kill(rank, signal.SIGKILL)

        with client_of(network) as client:
            answer = disturb(client, PROMPT, NUM_TOKENS, at_token=4, then=kill_rank)
        assert answer.ids == alone
        assert answer.whole.num_attempts == 2
        assert answer.whole.route[0].display_name != hit[0]
        child = network.nodes[hit[0]]
        until_sync(lambda: not child.is_running, timeout_s=30, what="the group's node ends")
        assert child.process.returncode == 1
        assert "rank 1 of 2 is lost" in " ".join(child.tail().split())
        bury(network, hit[0])
