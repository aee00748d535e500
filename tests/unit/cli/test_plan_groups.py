"""Pool files with tensor-parallel groups, weight formats and nodes that come and go."""

import copy
from pathlib import Path

import pytest

from plait.cli.plan_nominal import read_nominal
from plait.cli.plan_pool import read_pool
from plait.errors import ConfigError
from plait.types import TensorGroup, WeightFormat
from scheduler.planning.ground import Wish
from scheduler.planning.pool import plan_pool
from tests.unit.cli.test_plan_files import pool

GIB = 1 << 30
PAIR = """
weight_format = "int4"
[[nodes]]
name = "box"
memory_gib = 24
memory_gb_per_s = 900
tflops = 80
mean_session_h = 8
tensor_parallel = { degree = 4, link_gb_s = 12, link_latency_us = 8 }
[[nodes]]
name = "desk"
count = 2
memory_gib = 16
[[nodes]]
name = "attic"
memory_gib = 8
tflops = 10
[[groups]]
members = ["desk-1", "attic"]
link_gb_s = 1
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "pool.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_group_is_one_node_as_strong_as_its_weakest_times_the_degree(tmp_path: Path) -> None:
    read = read_pool(write(tmp_path, PAIR))
    box, desk, joined = read.nodes
    assert (box.node_id, box.memory_bytes, box.flops_per_s) == ("box", 96 * GIB, 3.2e14)
    assert box.group == TensorGroup(degree=4, link_bytes_per_s=12e9, link_latency_s=8e-6)
    assert desk.node_id == "desk-2" and desk.group is None
    assert (joined.node_id, joined.memory_bytes, joined.flops_per_s) == ("desk-1", 16 * GIB, 2e13)
    assert joined.group is not None and joined.group.degree == 2
    assert read.weight_format is WeightFormat.INT4
    assert read.mean_session_s == (("box", 8 * 3600.0),)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("degree = 4, ", "", "needs `degree`"),
        ("degree = 4", "degree = 0", "above 0"),
        ("degree = 4", "degree = 1.5", "whole number"),
        ("degree = 4", "degree = 4, wires = 2", "unknown field `wires`"),
        ("link_latency_us = 8", "link_latency_us = -1", "above 0"),
        ('"attic"]', '"cellar"]', "'cellar' is no node"),
        ('"attic"]', '"desk-1"]', "in a group already"),
        (', "attic"]', "]", "two nodes or more"),
        ('weight_format = "int4"', 'weight_format = "int3"', "one of native, .*int4"),
        ("mean_session_h = 8", "mean_session_h = 0", "above 0"),
        ('name = "attic"', 'name = "attic"\nregion = "us"', "different regions"),
    ],
)
def test_a_wrong_group_says_where(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in PAIR
    with pytest.raises(ConfigError, match=said):
        read_pool(write(tmp_path, PAIR.replace(old, new)))


def test_nominal_groups_are_planned_as_one_machine_and_uneven_heads_refused() -> None:
    table = copy.deepcopy(pool(2))
    table["nodes"][0]["tensor_parallel"] = {"degree": 4}
    table["nodes"][0]["mean_session_h"] = 2
    ground = read_nominal(table, "pool.json", None).ground
    assert ground.machines[0].kind.startswith("4 x card") and ground.machines[0].curve.sync_s > 0.0
    plan = plan_pool(ground, Wish(time_limit_s=2.0))
    assert any(0 in chain.members for chain in plan.chains)
    table["models"]["large"]["kv_heads"] = 6
    with pytest.raises(ConfigError, match="6 kv_heads of large cannot be divided among 4 ranks"):
        read_nominal(table, "pool.json", None)
