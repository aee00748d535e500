"""Five processes of one model and a hub that counts what it gives; then one that may not ask it."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from plait.cli.local_network import LocalNetwork, NodePlan, local_network
from plait.models import load_spec, resolve
from plait.types import ModelSpec
from tests.kit.memory import cap_for_stages
from tests.kit.network import KV_TOKENS, SERVE_S, client_of, num_serving
from tests.kit.tiny_model import write_tiny_model
from tests.kit.warm import WarmChildren
from tests.unit.models.hub_server import HubServer, only_hub

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NUM_NODES = 5
NUM_STAGES = 2


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
            prefix=("env", f"PLAIT_MODELS={models}"),
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


def spoil_layers(hub: HubServer, models_dir: Path) -> int:
    """A byte of every tensor of a layer that lies there."""
    file = hub.folder / "model.safetensors"
    with file.open("rb") as content:
        size = int.from_bytes(content.read(8), "little")
        header = json.loads(content.read(size))
    starts = {
        8 + size + entry["data_offsets"][0]
        for name, entry in header.items()
        if name.startswith("model.layers")
    }
    spoilt = 0
    for path in models_dir.glob("hub/*/*/ranges/*/*.bin"):
        if int(path.name.split("-")[0]) in starts:
            with path.open("r+b") as out:
                first = out.read(1)
                out.seek(0)
                out.write(bytes([first[0] ^ 1]))
            spoilt += 1
    return spoilt
