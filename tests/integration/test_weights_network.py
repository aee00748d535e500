"""Five processes of one model and a hub that counts what it gives; then one that may not ask it,
one whose disk is damaged and one whose disk is full."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from plait.cli.local_network import LocalNetwork, NodePlan, local_network
from plait.models import load_spec, resolve
from plait.types import ModelSpec
from tests.kit.chaos import grow_disk, kill, small_disk
from tests.kit.disturbed import bury
from tests.kit.memory import cap_for_stages
from tests.kit.network import KV_TOKENS, SERVE_S, client_of, num_serving
from tests.kit.tiny_model import write_tiny_model
from tests.kit.warm import WarmChildren
from tests.unit.models.hub_server import HubServer, only_hub

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NUM_NODES = 5
NUM_STAGES = 2
DISK_BYTES = 256 << 10
"""Less than a stage."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    home = tmp_path_factory.mktemp("hub")
    write_tiny_model(home / "org", times_wide=4)
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        only_hub(home / "org", home / "coordinator-models", monkeypatch) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def network(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """Two stages, then three nodes that hold layers which others hold already; each has a disk of
    its own."""
    home = tmp_path_factory.mktemp("network")
    options = ("--kv-tokens", str(KV_TOKENS), "--weights", "fp32", "--no-mqtt")
    with ExitStack() as stack:
        network = stack.enter_context(
            local_network(
                home=home,
                model="org/tiny",
                num_nodes=NUM_STAGES,
                options=options,
                start=WarmChildren,
            )
        )
        spec = load_spec(resolve(str(hub.folder)))
        for number in range(1, NUM_NODES + 1):
            join(network, number, spec)
            if number in (NUM_STAGES, NUM_NODES):
                serving(network, number)
        yield network


def join(network: LocalNetwork, number: int, spec: ModelSpec, *options: str) -> None:
    models = network.home / f"models-{number}"
    network.start_node(
        NodePlan(
            name=f"node {number}",
            memory_bytes=cap_for_stages(spec, NUM_STAGES, KV_TOKENS),
            options=options,
            environment={"PLAIT_MODELS": str(models)},
        )
    )


def serving(network: LocalNetwork, count: int) -> None:
    network.wait(
        lambda view: num_serving(view) == count,
        timeout_s=4 * SERVE_S,
        what=f"{count} serving nodes",
    )


def test_the_hub_gives_the_model_once(hub: HubServer, network: LocalNetwork) -> None:
    model_bytes = (hub.folder / "model.safetensors").stat().st_size
    assert hub.large_bytes <= 1.05 * model_bytes, hub.large_bytes / model_bytes
    network.wait(
        lambda view: sum(node.weights_neighbour_bytes_total for node in view.nodes) > model_bytes,
        timeout_s=60,
        what="heartbeats with what came",
    )
    with client_of(network) as client:
        assert client.generate([5, 9], max_tokens=2, ignore_eos=True).token_ids


def test_a_node_without_a_hub_takes_from_those_that_are_right(
    hub: HubServer, network: LocalNetwork
) -> None:
    """The disks of the first two are damaged: they are found out and named, others have the
    rest."""
    spoilt = [spoil_layers(hub, network.home / f"models-{number}") for number in (1, 2)]
    assert min(spoilt) > 0
    join(network, NUM_NODES + 1, load_spec(resolve(str(hub.folder))), "--offline")
    serving(network, NUM_NODES + 1)
    name = f"node {NUM_NODES + 1}"
    view = network.wait(
        lambda view: network.node_view(view, name).weights_rejected_total > 0,
        timeout_s=60,
        what="a heartbeat with what came",
    )
    new = network.node_view(view, name)
    assert new.weights_hub_bytes_total == 0 and new.weights_neighbour_bytes_total > 0
    blamed = [
        line
        for line in network.coordinator.log_path.read_text().splitlines()
        if "weights_rejected" in line
    ]
    first_two = {network.node_view(view, f"node {number}").node_id for number in (1, 2)}
    assert blamed and all(any(f"node_id={who}" in line for who in first_two) for line in blamed)


def test_a_node_whose_disk_is_damaged_fetches_again_and_serves_nothing_of_it(
    hub: HubServer, network: LocalNetwork
) -> None:
    """The first one's disk has been so since the test before; its process starts anew."""
    first = network.home / "models-1"
    assert any(each.is_spoilt for each in layers_of(hub, first))
    with client_of(network) as client:
        before = client.generate([5, 9], max_tokens=8, temperature=0.0, ignore_eos=True)
    kill(network.nodes["node 1"].pid)
    bury(network, "node 1")
    serving(network, NUM_NODES)
    join(network, 1, load_spec(resolve(str(hub.folder))))
    serving(network, NUM_NODES + 1)
    span = network.node_view(network.view(), "node 1").span
    assert span is not None
    held = [each for each in layers_of(hub, first) if each.number in range(*span)]
    assert held and not any(each.is_spoilt for each in held)
    with client_of(network) as client:
        for _ in range(NUM_NODES):
            answer = client.generate([5, 9], max_tokens=8, temperature=0.0, ignore_eos=True)
            assert answer.token_ids == before.token_ids


def test_a_node_whose_disk_is_full_says_so_and_serves_once_there_is_room(
    hub: HubServer, network: LocalNetwork
) -> None:
    number, count = NUM_NODES + 2, num_serving(network.view())
    name = f"node {number}"
    with small_disk(network.home / f"models-{number}", size_bytes=DISK_BYTES) as disk:
        join(network, number, load_spec(resolve(str(hub.folder))))
        view = network.wait(
            lambda view: any(n.display_name == name and n.last_error for n in view.nodes),
            timeout_s=SERVE_S,
            what="the full disk told of",
        )
        assert "MiB are needed" in network.node_view(view, name).last_error
        assert num_serving(view) == count
        assert [path for path in disk.rglob("*") if path.suffix in (".part", ".whl")] == []
        assert network.nodes[name].process.poll() is None
        grow_disk(disk, size_bytes=64 << 20)
        serving(network, count + 1)
        kill(network.nodes[name].pid)
        bury(network, name)


@dataclass(frozen=True, slots=True)
class Layer:
    """A tensor of a layer, in a file of a node's disk."""

    number: int
    path: Path
    is_spoilt: bool


def layers_of(hub: HubServer, models_dir: Path) -> list[Layer]:
    """All that lie there, held against the hub's."""
    file = hub.folder / "model.safetensors"
    whole = file.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    number_at = {
        8 + size + entry["data_offsets"][0]: int(name.split(".")[2])
        for name, entry in header.items()
        if name.startswith("model.layers.")
    }
    found = []
    for path in models_dir.glob("hub/*/*/ranges/*/*.bin"):
        at = int(path.name.split("-")[0])
        if at in number_at:
            content = path.read_bytes()
            is_spoilt = content != whole[at : at + len(content)]
            found.append(Layer(number_at[at], path, is_spoilt))
    return found


def spoil_layers(hub: HubServer, models_dir: Path) -> int:
    """A byte of every tensor of a layer that lies there."""
    layers = layers_of(hub, models_dir)
    for layer in layers:
        with layer.path.open("r+b") as out:
            first = out.read(1)
            out.seek(0)
            out.write(bytes([first[0] ^ 1]))
    return len(layers)
