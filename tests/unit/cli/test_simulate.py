"""`plait simulate` over a small pool of nominal figures."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait.cli.app import app
from plait.errors import ConfigError, UnavailableError

RUN = CliRunner(env={"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"})
MODEL = {
    "layers": 8,
    "hidden": 1024,
    "vocab": 32_000,
    "layer_bytes": 2e8,
    "kv_bytes": 4096,
    "layer_flops": 2e8,
    "embedding_bytes": 6.5e7,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    nodes = [
        {
            "id": f"n{i}",
            "gpu": "test",
            "region": ("eu", "us")[i % 2],
            "last_mile_ms": 3.0,
            "up_bytes_per_s": 2e7,
            "down_bytes_per_s": 6e7,
            "memory_bytes": 2_000_000_000,
            "flops": 2e13,
            "memory_bytes_per_s": 4e11,
        }
        for i in range(6)
    ]
    rtt = {"eu|eu": 8, "us|us": 8, "eu|us": 90}
    path = tmp_path / "pool.json"
    path.write_text(json.dumps({"nodes": nodes, "region_rtt_ms": rtt, "models": {"m": MODEL}}))
    return path


def figures(file: Path, *options: str) -> dict[str, object]:
    arguments = ["simulate", str(file), "--rate", "2", "--minutes", "1", "--json", *options]
    result = RUN.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    answer: dict[str, object] = json.loads(result.stdout)
    return answer


@pytest.mark.slow
def test_both_strategies_serve_and_a_seed_is_a_seed(file: Path) -> None:
    ours = figures(file, "--churn", "6", "--seed", "3")
    assert ours["num_finished"] and ours == figures(file, "--churn", "6", "--seed", "3")
    assert ours["digest"] != figures(file, "--churn", "6", "--seed", "4")["digest"]
    theirs = figures(file, "--strategy", "round-robin")
    assert theirs["strategy"] == "round-robin" and theirs["num_finished"]


def test_the_figures_are_told_in_words(file: Path) -> None:
    result = RUN.invoke(app, ["simulate", str(file), "-m", "m", "--minutes", "0.2"])
    assert result.exit_code == 0
    for word in ("first token", "p95", "goodput", "failed", "digest"):
        assert word in result.output


def test_an_unknown_model_is_named(file: Path) -> None:
    result = RUN.invoke(app, ["simulate", str(file), "-m", "other"])
    assert isinstance(result.exception, ConfigError) and "known: m" in result.exception.message


def test_a_trace_without_requests_is_refused_and_so_is_an_endless_one(file: Path) -> None:
    none = RUN.invoke(app, ["simulate", str(file), "--rate", "0.001", "--minutes", "0.01"])
    assert isinstance(none.exception, ConfigError) and "no request" in none.exception.message
    many = RUN.invoke(app, ["simulate", str(file), "--rate", "10000", "--minutes", "1440"])
    assert isinstance(many.exception, ConfigError) and "at most" in many.exception.message
    for figure in ("nan", "-1", "inf"):
        wrong = RUN.invoke(app, ["simulate", str(file), "--rate", figure])
        assert wrong.exit_code == 2 and "--rate" in wrong.output


@pytest.mark.parametrize("strategy", ["plait", "round-robin"])
def test_a_pool_that_cannot_hold_the_model_is_refused(file: Path, strategy: str) -> None:
    content = json.loads(file.read_text())
    for node in content["nodes"]:
        node["memory_bytes"] = 200_000_000
    file.write_text(json.dumps(content))
    result = RUN.invoke(app, ["simulate", str(file), "--strategy", strategy, "--minutes", "0.2"])
    assert isinstance(result.exception, UnavailableError)
