"""Pool files with tensor-parallel groups, weight formats and nodes that come and go."""

import copy
from dataclasses import replace
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


def test_a_group_stays_as_long_as_all_of_its_members(tmp_path: Path) -> None:
    text = PAIR.replace('name = "attic"', 'name = "attic"\nmean_session_h = 3')
    text = text.replace('name = "desk"', 'name = "desk"\nmean_session_h = 6')
    sessions = dict(read_pool(write(tmp_path, text)).mean_session_s)
    assert sessions["desk-1"] == pytest.approx(2 * 3600.0)  # type: ignore[index]
    assert sessions["desk-2"] == 6 * 3600.0  # type: ignore[index]
    assert "attic" not in sessions


def test_a_group_of_groups_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'box' is no node, or in a group already"):
        read_pool(write(tmp_path, PAIR.replace('"attic"]', '"box"]')))


def grouped() -> dict:  # type: ignore[type-arg]
    table = copy.deepcopy(pool(6))
    table["nodes"][2] |= {"memory_bytes": 16 * GIB, "flops": 3e13, "mean_session_h": 6}
    table["nodes"][0] |= {"up_bytes_per_s": 2e6, "mean_session_h": 3, "last_mile_ms": 9.0}
    table["groups"] = [{"members": ["n0", "n2"], "link_gb_s": 2, "link_latency_us": 40}]
    return table


def test_nominal_nodes_are_made_one_by_an_entry_of_groups() -> None:
    ground = read_nominal(grouped(), "pool.json", None).ground
    assert [m.node_id for m in ground.machines] == ["n1", "n3", "n4", "n5", "n0"]
    alone = pool(1)
    alone["region_rtt_ms"] = {"eu|eu": 10}
    alone["nodes"][0] |= {
        "memory_bytes": 16 * GIB,
        "flops": 3e13,
        "up_bytes_per_s": 2e6,
        "last_mile_ms": 9.0,
        "mean_session_h": 2,
        "tensor_parallel": {"degree": 2, "link_gb_s": 2, "link_latency_us": 40},
    }
    (same,) = read_nominal(alone, "pool.json", None).ground.machines
    joined = ground.machines[-1]
    assert replace(joined, kind="", region=0) == replace(same, kind="", region=0)
    assert joined.kind.startswith("2 x card 24 GiB") and " or card 16 GiB" in joined.kind
    assert plan_pool(ground, Wish(time_limit_s=2.0)).chains


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([{"members": ["n0", "n1"]}], r"groups\[0\]: its members stand in different regions"),
        ([{"members": ["n0", "x"]}], "'x' is no node"),
        ([{"members": ["n0", 3]}], "3 is no node"),
        ([{"members": ["n0", "n2"]}, {"members": ["n4", "n2"]}], r"groups\[1\]: 'n2' is no node"),
        ([{"members": ["n0", "n0"]}], "in a group already"),
        ([{"members": ["n0"]}], "two nodes or more"),
        ([3], "two nodes or more"),
        ({"members": []}, "a list of tables"),
        ([{"members": ["n0", "n2"], "link_gb_s": 0}], "`link_gb_s` must be above 0"),
        ([{"members": ["n0", "n2"], "wires": 2}], "unknown field `wires`"),
        ([{"members": ["n0", "n2", "n4"]}], r"groups\[0\]: 8 heads of large cannot be divided"),
    ],
)
def test_a_wrong_nominal_group_says_where(groups: object, said: str) -> None:
    table = copy.deepcopy(pool(6))
    table["models"]["large"]["heads"] = 8
    table["groups"] = groups
    with pytest.raises(ConfigError, match=said):
        read_nominal(table, "pool.json", None)


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
