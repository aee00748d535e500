"""Two models in one network of real processes: shared by demand, both served, and calibrated."""

from pathlib import Path

import pytest

from plait.cli.local_network import LocalNetwork, NodePlan, is_ready, local_network
from tests.kit.network import SERVE_S, client_of, num_serving
from tests.kit.tiny_model import write_tiny_model
from tests.kit.warm import WarmChildren

pytestmark = pytest.mark.slow
NODES = 3
ROUNDS = 20


def served_by(network: LocalNetwork) -> dict[str | None, int]:
    view = network.view()
    models = [node.model_id for node in view.nodes if node.state == "serving"]
    return {model: models.count(model) for model in sorted(set(models), key=str)}


def observed(network: LocalNetwork) -> set[str]:
    """Nodes of which enough steps were seen to say how far predictions are off."""
    nodes = network.view().nodes
    return {node.node_id for node in nodes if node.decode_error_percent is not None}


def test_two_models_share_the_nodes_by_demand_and_each_nodes_error_is_seen(tmp_path: Path) -> None:
    for name, seed in (("one", 7), ("two", 8)):
        write_tiny_model(tmp_path / name, seed=seed)
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    shared = ("--model", two, "--demand", f"{one}=2,{two}=1", "--min-replicas", f"{one}=2")
    options = (*shared, "--no-mqtt", "--kv-tokens", "256", "--weights", "fp32")
    home = tmp_path / "network"
    with local_network(
        home=home, model=one, num_nodes=NODES, options=options, start=WarmChildren
    ) as network:
        for number in range(NODES):
            network.start_node(NodePlan(name=f"node {number}"))
        network.wait(
            lambda view: num_serving(view) == NODES and is_ready(view),
            timeout_s=SERVE_S,
            what=f"{NODES} nodes that serve two models",
        )
        assert served_by(network) == {"one": 2, "two": 1}
        shares = {m.model_id: round(m.demand_share, 3) for m in network.view().models}
        assert shares == {"one": 0.667, "two": 0.333}
        used: set[str] = set()
        with client_of(network) as client:
            for _ in range(ROUNDS):
                for model in ("one", "two"):
                    answer = client.generate(
                        [1, 2, 3], model=model, max_tokens=200, ignore_eos=True
                    )
                    assert len(answer.token_ids) == 200
                    used |= {stage.node_id for stage in answer.route}
                if len(used & observed(network)) >= 2:
                    break
        assert len(used & observed(network)) >= 2, "steps of two nodes should have been seen"
        view = network.view()
        hops = [hop for node in view.nodes for hop in node.hops]
        assert hops and all(hop.rtt_ms > 0 and hop.bytes_per_s > 0 for hop in hops)
