"""`plait plan` on pools of nominal figures and on clusters: told apart, checked, planned."""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait.cli.app import app
from plait.cli.plan_cluster import is_cluster, read_cluster
from plait.cli.plan_nominal import is_nominal, read_nominal
from plait.errors import ConfigError, UnavailableError
from scheduler.planning.ground import Wish
from scheduler.planning.pool import plan_pool

Change = Callable[[dict], None]  # type: ignore[type-arg]


def pool(num_nodes: int = 6) -> dict:  # type: ignore[type-arg]
    return {
        "nodes": [
            {
                "id": f"n{i}",
                "gpu": "card",
                "region": ("eu", "us")[i % 2],
                "last_mile_ms": 3.0 + i,
                "up_bytes_per_s": 12.5e6,
                "down_bytes_per_s": 62.5e6,
                "memory_bytes": 24 * 2**30,
                "flops": 7e13,
                "memory_bytes_per_s": 9e11,
            }
            for i in range(num_nodes)
        ],
        "region_rtt_ms": {"eu|eu": 10, "us|us": 8, "eu|us": 90},
        "models": {
            "large": {
                "layers": 64,
                "hidden": 5120,
                "vocab": 151_936,
                "layer_bytes": 2.7e8,
                "kv_bytes": 4096,
                "layer_flops": 1.04e9,
                "embedding_bytes": 1.5e9,
            }
        },
    }


def cluster() -> dict:  # type: ignore[type-arg]
    ids = [0, 1, 2]
    ends = [["source", i, 1e9, 0.001] for i in ids] + [[i, "sink", 1e9, 0.001] for i in ids]
    return {
        "model": {"layers": 12, "token_bytes": 2, "activation_bytes": 16_384},
        "machine_types": {
            "big": {
                "nic_in_Bps": 1e10,
                "nic_out_Bps": 1e10,
                "tok_per_s_by_layers": {str(k): 8000 / k for k in range(1, 7)},
            }
        },
        "nodes": [{"id": i, "type": "big"} for i in ids],
        "links_bidirectional": ends + [[i, j, 1e9, 0.001] for i in ids for j in ids if i < j],
    }


def test_files_are_told_apart_by_what_is_in_them() -> None:
    assert is_nominal(pool()) and not is_cluster(pool())
    assert is_cluster(cluster()) and not is_nominal(cluster())
    assert not is_nominal({"nodes": []}) and not is_cluster({"nodes": []})


def _set(field: str, value: object) -> Change:
    return lambda p: p["nodes"][1].update({field: value})


def _drop(name: str) -> Change:
    return lambda p: p.pop(name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: p.update(nodes=[]), "at least one entry of `nodes`"),
        (lambda p: p.update(nodes=[3]), "is not a table"),
        (_set("id", "n0"), "'n0' is used twice"),
        (_set("id", ""), "needs `id`"),
        (_set("flops", 0), "`flops` must be above 0"),
        (_set("memory_bytes_per_s", -1.0), "`memory_bytes_per_s` must be above 0"),
        (_set("flops", math.nan), "`flops` is not a number: nan"),
        (_set("memory_bytes", "24"), "`memory_bytes` is not a number"),
        (_set("up_bytes_per_s", [1]), "`up_bytes_per_s` is not a number"),
        (_set("last_mile_ms", -2), "`last_mile_ms`"),
        (_set("last_mile_ms", math.inf), "`last_mile_ms`"),
        (_set("region", "mars"), "unknown region 'mars'"),
        (lambda p: p["region_rtt_ms"].update({"eu|us": -4}), "must be above 0"),
        (lambda p: p["region_rtt_ms"].update({"eu": 4}), "is not"),
        (_drop("models"), "`models` must be a table"),
        (lambda p: p["models"]["large"].pop("vocab"), "needs `vocab`"),
        (lambda p: p["models"]["large"].update(layers=2.5), "whole number"),
        (lambda p: p["models"].update(other={}), "which model"),
    ],
)
def test_a_pool_that_is_wrong_says_where(change: Change, said: str) -> None:
    wrong = copy.deepcopy(pool())
    change(wrong)
    with pytest.raises(ConfigError, match=said):
        read_nominal(wrong, "pool.json", None)


def test_a_model_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(ConfigError, match="known: large"):
        read_nominal(pool(), "pool.json", "small")


def test_missing_and_asymmetric_round_trips_are_assumed_and_said() -> None:
    table = pool()
    table["region_rtt_ms"] = {"eu|us": 90, "us|eu": 120, "eu|eu": 10}
    read = read_nominal(table, "pool.json", None)
    assert any("eu|us and us|eu differ: 120 ms" in note for note in read.notes)
    assert any("us|us is given: 10 ms assumed" in note for note in read.notes)
    assert read.ground.region_rtt_s[0][1] == read.ground.region_rtt_s[1][0] == 0.12
    assert plan_pool(read.ground, Wish()).chains


def test_a_model_larger_than_the_pool_says_how_much_is_missing() -> None:
    with pytest.raises(UnavailableError, match="GiB of weights are missing"):
        plan_pool(read_nominal(pool(1), "pool.json", None).ground, Wish())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(nodes=[]), "at least one entry"),
        (lambda c: c["nodes"][1].update(id=0), "used twice"),
        (lambda c: c["nodes"][1].update(type="small"), "`type` is one of big"),
        (lambda c: c["machine_types"]["big"].update(tok_per_s_by_layers={}), "is empty"),
        (lambda c: c["machine_types"]["big"]["tok_per_s_by_layers"].update({"1": 0}), "above 0"),
        (lambda c: c["machine_types"]["big"]["tok_per_s_by_layers"].update({"x": 1}), "of layers"),
        (lambda c: c["links_bidirectional"].append([0, 9, 1e9, 0.1]), "no node '9'"),
        (lambda c: c["links_bidirectional"].append([0, 1, math.nan, 0.1]), "not a number: nan"),
        (lambda c: c["links_bidirectional"].append([0]), "is not"),
        (lambda c: c["model"].pop("layers"), "needs `layers`"),
    ],
)
def test_a_cluster_that_is_wrong_says_where(change: Change, said: str) -> None:
    wrong = copy.deepcopy(cluster())
    change(wrong)
    with pytest.raises(ConfigError, match=said):
        read_cluster(wrong, "cluster.json")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def test_a_pool_is_planned_shown_and_written(tmp_path: Path) -> None:
    file, out = tmp_path / "pool.json", tmp_path / "plan.json"
    file.write_text(json.dumps(pool()), "utf-8")
    plan = json.loads(run(str(file), "--json", "--out", str(out)))
    assert plan["tokens_per_s"] <= plan["bound_tokens_per_s"]
    assert plan["front"] and plan["one_more"][0]["tokens_per_s"] > 0
    written = json.loads(out.read_text("utf-8"))
    assert written == {name: plan[name] for name in ("pipelines", "model", "chain_tokens_per_s")}
    assert sum(written["chain_tokens_per_s"]) == pytest.approx(plan["tokens_per_s"], rel=1e-3)
    for stages in written["pipelines"]:
        edges = [0, *(stage["end"] for stage in stages)]
        assert [stage["start"] for stage in stages] == edges[:-1] and edges[-1] == 64
    shown = run(str(file), "--explain")
    assert (
        "no plan of these nodes carries more" in shown
        and "one more node" in shown
        and "layers 0-" in shown
    )


def test_a_cluster_is_planned_shown_and_written(tmp_path: Path) -> None:
    file, out = tmp_path / "cluster.json", tmp_path / "plan.json"
    file.write_text(json.dumps(cluster()), "utf-8")
    plan = json.loads(run(str(file), "--json", "--max-stages", "3", "--out", str(out)))
    assert plan["num_stages"] <= 3 and plan["tokens_per_s"] == pytest.approx(2000.0)
    assert json.loads(out.read_text("utf-8")) == plan["placement"]
    assert "one more node" in run(str(file), "--explain")
    result = CliRunner().invoke(app, ["plan", str(file), "--slo-tpot-ms", "9"])
    assert isinstance(result.exception, ConfigError)
