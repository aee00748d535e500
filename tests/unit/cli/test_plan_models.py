"""`plait plan` for several models side by side."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from plait.cli.app import app
from plait.cli.plan_asked import asked_of
from plait.cli.plan_own import problem_of
from plait.cli.plan_pool import pool_of
from plait.errors import ConfigError
from plait.types import ModelId
from scheduler.allocation import allocate_greedy
from scheduler.allocation.rates import asked_shares, model_rates
from tests.kit.tiny_model import write_tiny_model
from tests.unit.cli.test_plan_files import pool
from tests.unit.scheduler.pools import node, problem, tiny_model

POOL = "[[nodes]]\nname = 'n'\ncount = 6\nmemory_gib = 0.2\ndtype = 'float32'\n"


@pytest.mark.parametrize(
    ("models", "demand", "said"),
    [
        (["a", "a"], [], "--model a is named twice"),
        (["a", "b"], ["c=1"], r"--demand c: it is no --model of this plan \(a, b\)"),
        ([], ["c=1"], r"of this plan \(none\)"),
        (["a", "b"], ["a=1", "a=2", "b=1"], "--demand a is said twice"),
        (["a"], ["a=2"], "name several with --model"),
        (["a", "b"], ["a=0", "b=1"], "numbers above 0"),
        (["a", "b"], ["a=nan", "b=1"], "numbers above 0"),
        (["a", "b"], ["a", "b=1"], "give NAME=NUMBER"),
        ([f"m{i}" for i in range(17)], [], "16 at most"),
    ],
)
def test_what_is_asked_of_models_is_checked(
    models: list[str], demand: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        asked_of(models, demand)


def test_weights_may_come_one_by_one_or_together() -> None:
    apart = asked_of(["a", "b"], ["a=2", "b=1"])
    assert apart == asked_of(["a", "b"], ["a=2,b=1"])
    assert apart.demand == (("a", 2.0), ("b", 1.0))


@settings(max_examples=25, deadline=None)
@given(
    memories=st.lists(st.integers(250, 700), min_size=2, max_size=7),
    weight=st.floats(0.2, 5.0),
)
def test_rates_by_model_add_up_to_the_plans(memories: list[int], weight: float) -> None:
    nodes = [node(f"n{i}", memory_mib=memory) for i, memory in enumerate(memories)]
    models = (tiny_model(2, model_id="a"), tiny_model(4, model_id="b"))
    demand = ((ModelId("a"), weight), (ModelId("b"), 1.0))
    asked = replace(problem(*nodes), models=models, demand=demand)
    plan = allocate_greedy(asked)
    rates = model_rates(asked, plan)
    assert sum(rates.values()) == pytest.approx(plan.objective_tokens_per_s)
    placed = {p.node_id: p.model_id for p in plan.placements}
    served = {placed[chain[0]] for chain in plan.pipelines}
    assert {model_id for model_id, rate in rates.items() if rate > 0.0} == served
    assert asked_shares(asked)[ModelId("a")] == pytest.approx(weight / (weight + 1.0))


def test_least_chains_come_by_the_names_of_models(tmp_path: Path) -> None:
    models = [str(tmp_path / name) for name in ("one", "other")]
    for folder in models:
        write_tiny_model(Path(folder))
    asked = asked_of(models, [], replicas_min=[f"{models[1]}=2"])
    table = tomllib.loads(POOL)
    own = problem_of(pool_of(table, tmp_path), asked, tmp_path, time_limit_s=60.0)
    assert own.replicas_min == (("other", 2),)
    plan = allocate_greedy(own)
    placed = {p.node_id: p.model_id for p in plan.placements}
    assert sum(placed[chain[0]] == "other" for chain in plan.pipelines) >= 2
    with pytest.raises(ConfigError, match="whole numbers"):
        asked_of(["a"], [], replicas_min=["a=1.5"])


def invoke(*arguments: str) -> tuple[str, Exception | None]:
    result = CliRunner().invoke(app, ["plan", *arguments])
    caught = result.exception
    return result.stdout, caught if isinstance(caught, Exception) else None


@pytest.mark.slow
def test_two_models_share_a_pool_as_they_are_asked_for(tmp_path: Path) -> None:
    file, out = tmp_path / "pool.toml", tmp_path / "plan.json"
    file.write_text(POOL, "utf-8")
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    write_tiny_model(tmp_path / "one")
    write_tiny_model(tmp_path / "other")
    asked = ["--model", one, "--model", other]
    shown, error = invoke(str(file), *asked, "--demand", f"{one}=2", "--demand", f"{other}=1")
    assert error is None
    said = " ".join(shown.split())
    assert "67 % is asked of it" in said and "33 % is asked of it" in said
    printed, error = invoke(
        str(file), *asked, "--demand", f"{one}=2,{other}=1", "--json", "--out", str(out)
    )
    assert error is None
    plan = json.loads(printed)
    assert json.loads(out.read_text("utf-8")) == plan
    rates = {m["model"]: m["tokens_per_s"] for m in plan["models"]}
    assert rates["one"] == pytest.approx(2 * rates["other"], rel=0.05)
    assert sum(rates.values()) == pytest.approx(plan["tokens_per_s"], rel=1e-3)
    assert {p["model"] for p in plan["placements"]} == {"one", "other"}
    for wrong, said in (
        ([*asked, "--demand", f"{one}=2"], "give every model a weight"),
        ([*asked, "--max-stages", "2"], "one --model at a time"),
        ([], "which model"),
        ([*asked, "--min-replicas", "third=2"], "it is no --model of this plan"),
        (["--model", one, "--min-replicas", f"{one}=2", "--max-stages", "2"], "goes without"),
        (["--model", one, "--model", f"{one}/"], "are one model, one"),
    ):
        _, error = invoke(str(file), *wrong)
        assert isinstance(error, ConfigError) and said in error.message


@pytest.mark.slow
def test_models_share_a_pool_of_nominal_devices(tmp_path: Path) -> None:
    table = pool(6)
    table["models"]["small"] = {**table["models"]["large"], "layers": 16}
    file, out = tmp_path / "pool.json", tmp_path / "plan.json"
    file.write_text(json.dumps(table), "utf-8")
    asked = [str(file), "--model", "large", "--model", "small"]
    printed, error = invoke(*asked, "--demand", "large=1,small=2", "--json", "--out", str(out))
    assert error is None
    plan = json.loads(printed)
    assert json.loads(out.read_text("utf-8")) == {"pipelines": plan["pipelines"]}
    assert {stage["model"] for chain in plan["pipelines"] for stage in chain} == {"large", "small"}
    rates = {m["model"]: m["tokens_per_s"] for m in plan["models"]}
    assert sum(rates.values()) == pytest.approx(plan["tokens_per_s"], abs=0.01)
    assert [m["share_asked"] for m in plan["models"]] == pytest.approx([1 / 3, 2 / 3], abs=1e-5)
    shown, error = invoke(*asked, "--explain")
    assert error is None and "50 % is asked of it" in " ".join(shown.split())
    _, error = invoke(*asked, "--current", str(out))
    assert isinstance(error, ConfigError) and "one --model at a time" in error.message
    _, error = invoke(*asked, "--demand", "large=1")
    assert isinstance(error, ConfigError) and "give every model a weight" in error.message
    _, error = invoke(*asked, "--min-replicas", "large=2")
    assert isinstance(error, ConfigError) and "pools of measured nodes" in error.message
