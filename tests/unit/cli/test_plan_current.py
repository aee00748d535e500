"""`plait plan --current`: a pool as it is now, against a plan that was made before."""

import copy
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait.cli.app import app
from plait.cli.plan_current import match_models, match_pool, read_current
from plait.errors import ConfigError
from tests.kit.tiny_model import write_tiny_model
from tests.unit.cli.test_plan_files import cluster, pool

STAGES = {
    "pipelines": [
        [{"node": "a", "start": 0, "end": 2}, {"node": "b", "start": 2, "end": 4}],
        [{"node": "c", "start": 0, "end": 4}],
    ],
    "model": "m",
    "chain_tokens_per_s": [5.0, 7.5],
}
PLACED = {
    "placements": [
        {"node": "a", "model": "m", "start": 0, "end": 3, "reason": "x"},
        {"node": "b", "model": "m", "start": 2, "end": 4},
        {"node": "c", "model": "other", "start": 0, "end": 6},
    ],
    "pipelines": [["a", "b"], ["c"]],
    "models": [{"model": "m", "num_layers": 4}, {"model": "other", "num_layers": 6}],
}


def write(folder: Path, content: object, name: str = "plan.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content), "utf-8")
    return path


def test_both_forms_of_a_plan_are_read(tmp_path: Path) -> None:
    stages = read_current(write(tmp_path, STAGES))
    assert [(s.node, s.model, s.start, s.end) for s in stages.held] == [
        ("a", "m", 0, 2),
        ("b", "m", 2, 4),
        ("c", "m", 0, 4),
    ]
    assert stages.rates == (5.0, 7.5) and stages.models() == ["m"]
    placed = read_current(write(tmp_path, PLACED))
    assert placed.models() == ["m", "other"]
    assert [[s.node for s in chain] for chain in placed.chains] == [["a", "b"], ["c"]]
    old = read_current(write(tmp_path, {"pipelines": STAGES["pipelines"]}))
    assert old.models() == [] and old.rates == (None, None)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("pipelines",), [], "at least one entry of `pipelines`"),
        (("pipelines",), {}, "at least one entry of `pipelines`"),
        (("pipelines", 0), [], r"pipelines\[0\] is not a list of stages"),
        (("pipelines", 0, 0), 3, r"pipelines\[0\]\[0\] is not a table"),
        (("pipelines", 0, 0, "node"), "", "needs a `node`"),
        (("pipelines", 0, 0, "node"), "c", "c stands in two places"),
        (("pipelines", 0, 0, "end"), 0, "the first below the second"),
        (("pipelines", 0, 0, "end"), 3, "b starts at layer 2, not 3"),
        (("pipelines", 0, 0, "start"), 1, "a starts at layer 1, not 0"),
        (("pipelines", 0, 0, "end"), "2", "are layers"),
        (("pipelines", 0, 0, "start"), True, "are layers"),
        (("pipelines", 0, 1, "end"), 10**9, "are layers"),
        (("pipelines", 1, 0, "end"), 5, "do not end at the same layer"),
        (("model",), 3, "needs a `model`"),
    ],
)
def test_a_broken_plan_says_where(
    tmp_path: Path, path: tuple[str | int, ...], value: object, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read_current(write(tmp_path, changed(STAGES, path, value)))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("placements",), [], "at least one entry of `placements`"),
        (("placements", 0), None, r"placements\[0\] is not a table"),
        (("placements", 0, "model"), None, r"placements\[0\]: it needs a `model`"),
        (("placements", 0, "node"), "b", "b stands in two places"),
        (("pipelines", 0), ["a", "x"], r"pipelines\[0\] names a node without a placement"),
        (("pipelines", 0), "ab", r"pipelines\[0\] names a node"),
    ],
)
def test_a_broken_plan_of_a_network_says_where(
    tmp_path: Path, path: tuple[str | int, ...], value: object, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read_current(write(tmp_path, changed(PLACED, path, value)))


def changed(plan: object, path: tuple[str | int, ...], value: object) -> object:
    wrong = copy.deepcopy(plan)
    at = wrong
    for step in path[:-1]:
        at = at[step]  # type: ignore[index]
    at[path[-1]] = value  # type: ignore[index]
    return wrong


def test_what_is_no_plan_is_told(tmp_path: Path) -> None:
    for content, said in (
        ({"nodes": []}, "is no plan"),
        ({"0": [0, 4], "1": [4, 8]}, "a plan of a cluster"),
        ([], "is not a table"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_current(write(tmp_path, content))
    with pytest.raises(ConfigError, match="there is no file"):
        read_current(tmp_path / "none.json")


def test_a_stale_plan_is_told(tmp_path: Path) -> None:
    stages, placed = (read_current(write(tmp_path, plan)) for plan in (STAGES, PLACED))
    match_models(stages, {"m": 4})
    match_models(placed, {"m": 4, "other": 6})
    with pytest.raises(ConfigError, match=r"layers of m, which is not planned here \(n\)"):
        match_models(stages, {"n": 4})
    with pytest.raises(ConfigError, match="stale: m has 4 layers there, 6 here"):
        match_models(stages, {"m": 6})
    with pytest.raises(ConfigError, match="layers of other, which is not planned here"):
        match_models(placed, {"m": 4})
    with pytest.raises(ConfigError, match="other has 6 layers there, 8 here"):
        match_models(placed, {"m": 4, "other": 8})
    bare = read_current(write(tmp_path, {"pipelines": STAGES["pipelines"]}))
    with pytest.raises(ConfigError, match="n has 4 layers there, 5 here"):
        match_models(bare, {"n": 5})
    assert match_pool(stages, ["b", "d", "c"], "pool") == (["a"], ["d"])
    with pytest.raises(ConfigError, match=r"none of the 3 nodes of .* is in pool"):
        match_pool(stages, ["x"], "pool")


def invoke(*arguments: str) -> tuple[str, Exception | None]:
    result = CliRunner().invoke(app, ["plan", *arguments])
    caught = result.exception
    return result.stdout, caught if isinstance(caught, Exception) else None


@pytest.mark.slow
def test_a_pool_that_lost_a_node_moves_little(tmp_path: Path) -> None:
    before, after, plan = pool(6), pool(6), tmp_path / "plan.json"
    _, error = invoke(str(write(tmp_path, before, "pool.json")), "--out", str(plan))
    assert error is None
    lost, spare = after["nodes"].pop(1), copy.deepcopy(after["nodes"][0])
    spare |= {"id": "spare", "region": lost["region"]}
    after["nodes"].append(spare)
    now = str(write(tmp_path, after, "now.json"))
    printed, error = invoke(now, "--current", str(plan), "--json", "--out", str(plan))
    assert error is None
    said = json.loads(printed)
    assert said["gone"] == ["n1"] and said["joined"] == ["spare"]
    assert said["moved_nodes"] == 0 and said["kept_nodes"] == 5
    assert [move["node"] for move in said["moves"]] == ["spare"]
    assert said["read_bytes"] == sum(m["read_bytes"] for m in said["moves"]) > 0
    assert said["anew_tokens_per_s"] <= said["bound_tokens_per_s"]
    shown, error = invoke(now, "--current", str(plan))
    assert error is None
    assert "0 nodes move, 6 keep what they hold" in " ".join(shown.split())
    _, error = invoke(str(write(tmp_path, cluster(), "c.json")), "--current", str(plan))
    assert isinstance(error, ConfigError) and "--current is for pools" in error.message


@pytest.mark.slow
def test_a_network_that_changed_keeps_what_it_can(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    model, plan = ["--model", str(tmp_path / "tiny")], tmp_path / "plan.json"
    text = "kv_tokens = 64\n[[nodes]]\nname='n'\ncount={}\nmemory_gib={}\ndtype='float32'\n"
    file = tmp_path / "pool.toml"
    file.write_text(text.format(3, 0.2), "utf-8")
    _, error = invoke(str(file), *model, "--out", str(plan))
    assert error is None
    file.write_text(text.format(4, 0.2), "utf-8")
    printed, error = invoke(str(file), *model, "--current", str(plan), "--json")
    assert error is None
    said = json.loads(printed)
    assert (said["moved_nodes"], said["kept_nodes"], said["joined"]) == (0, 3, ["n-4"])
    small = text.format(2, 0.2) + "[[nodes]]\nname='n-3'\nmemory_gib=0.001\ndtype='float32'\n"
    file.write_text(small, "utf-8")
    shown, error = invoke(str(file), *model, "--current", str(plan))
    assert error is None
    words = " ".join(shown.split())
    assert "n-3 can hold layers 0-3 of tiny no more" in words
    assert "1 node moves, 2 keep what they hold" in words
