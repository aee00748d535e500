"""`plait simulate` over a small pool of nominal figures."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait.cli.app import app
from plait.errors import ConfigError

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
