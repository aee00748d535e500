"""The pool files that the pages show are read as they stand."""

import re
import tomllib
from pathlib import Path
from typing import Final

from plait.cli.plan_cluster import is_cluster, read_cluster
from plait.cli.plan_nominal import is_nominal, read_nominal
from plait.cli.plan_pool import NODE_FIELDS, POOL_FIELDS, read_pool
from tests.unit.docs.pages import ROOT

PAGE: Final = (ROOT / "docs" / "planning.md").read_text("utf-8")
OWN, NOMINAL, CLUSTER = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_a_pool(tmp_path: Path) -> None:
    (tmp_path / "pool.toml").write_text(OWN, "utf-8")
    pool = read_pool(tmp_path / "pool.toml")
    assert [node.display_name for node in pool.nodes] == ["gamer-1", "gamer-2", "gamer-3", "desk"]
    assert pool.nodes[-1].group is not None


def test_every_field_of_a_pool_is_shown() -> None:
    for field in NODE_FIELDS | POOL_FIELDS:
        assert re.search(rf"\b{field}\b", OWN), field


def test_nominal_devices() -> None:
    table = tomllib.loads(NOMINAL)
    assert is_nominal(table)
    pool = read_nominal(table, "planning.md", None)
    assert (pool.model, len(pool.ground.machines), pool.notes) == ("llama-8b-bf16", 1, ())


def test_a_cluster() -> None:
    table = tomllib.loads(CLUSTER)
    assert is_cluster(table)
    cluster = read_cluster(table, "planning.md")
    assert (cluster.num_layers, cluster.node_ids) == (6, ("a", "b"))
