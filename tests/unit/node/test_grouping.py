"""What an owner may say about a group of ranks, and what is refused before anything is loaded."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from node.config import NodeConfig
from node.core.events import ModelOffered
from node.engine.device import pick_device
from node.engine.host import ThreadedEngineHost
from node.grouping import open_engine, rank_lost, read_secret, unfit
from plait.cli.node_rank import checked_listen
from plait.errors import ConfigError
from plait.models.source import TensorSource
from plait.types import DType, ModelSource, SourceKind
from tests.unit.engine.kit import tiny_model

CPU = pick_device("cpu", DType.FLOAT32)


def no_source(_source: ModelSource) -> TensorSource:
    raise AssertionError("nothing is to be opened")


def test_one_rank_is_a_plain_engine(tmp_path: Path) -> None:
    engine = asyncio.run(open_engine(NodeConfig(home=tmp_path), CPU, no_source, None))
    assert type(engine) is ThreadedEngineHost


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_a_model_that_does_not_divide_is_refused_with_what_would_do(
    tmp_path: Path, num_ranks: int
) -> None:
    spec = replace(tiny_model("llama").spec, num_heads=6, num_kv_heads=2, intermediate_size=80)
    source = ModelSource(kind=SourceKind.PATH, name="tiny")
    offered = [ModelOffered(spec=spec, source=source)]
    config = NodeConfig(home=tmp_path, tensor_parallel=num_ranks)
    refusal = unfit(config, CPU, offered)
    if num_ranks < 3:
        assert refusal is None
        return
    assert refusal is not None
    assert refusal.code == "group_uneven"
    assert "6 attention heads" in refusal.message
    assert "1, 2 would do (--tensor-parallel)" in refusal.message
    assert "models_allow" in refusal.message


def test_a_lost_rank_is_a_failure_with_the_way_back() -> None:
    leaving = rank_lost("rank 1 of 2 is lost: the other end is gone")
    assert leaving.code != 0
    assert leaving.reason.code == "rank_lost"
    assert "start the node again" in leaving.reason.message


def test_a_secret_is_long_enough_and_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "group.secret"
    with pytest.raises(ConfigError, match="--secret-file"):
        read_secret(None)
    path.write_text("0123456789abcdef\n")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_secret(path)
    path.chmod(0o600)
    assert read_secret(path) == b"0123456789abcdef"
    path.write_text("guess me\n")
    with pytest.raises(ConfigError, match="openssl rand"):
        read_secret(path)


@pytest.mark.parametrize(
    ("listen", "num_ranks", "has_secret", "words"),
    [
        ("", 2, True, "with --rank-listen"),
        ("10.0.0.5:7499", 1, True, "--tensor-parallel"),
        ("10.0.0.5:7499", 2, False, "--secret-file"),
        ("0.0.0.0:7499", 2, True, "network you trust"),
    ],
)
def test_flags_of_a_group_that_contradict_each_other(
    tmp_path: Path, listen: str, num_ranks: int, has_secret: bool, words: str
) -> None:
    secret = tmp_path / "group.secret" if has_secret else None
    with pytest.raises(ConfigError, match=words):
        checked_listen(listen, num_ranks, secret)
    assert checked_listen("10.0.0.5:7499", 2, tmp_path / "s") == "10.0.0.5:7499"
