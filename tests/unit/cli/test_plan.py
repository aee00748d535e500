"""`plait plan` on pools that people write."""

import json
from pathlib import Path

import pytest

from plait.cli.plan_pool import read_pool
from plait.errors import ConfigError
from plait.types import DType

POOL = """
kv_tokens = 1024

[[nodes]]
name = "home"
count = 2
region = "eu"
memory_gib = 0.5
dtype = "float32"

[[nodes]]
name = "lab"
region = "us"
memory_gib = 1

[regions]
"eu|eu" = 8
"us|eu" = 90
"""


def write(tmp_path: Path, text: str, name: str = "pool.toml") -> Path:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return path


def test_a_pool_is_read_with_counts_regions_and_defaults(tmp_path: Path) -> None:
    pool = read_pool(write(tmp_path, POOL))
    assert [n.node_id for n in pool.nodes] == ["home-1", "home-2", "lab"]
    assert pool.nodes[0].memory_bytes == 1 << 29
    assert [n.compute_dtype for n in pool.nodes] == [DType.FLOAT32, DType.FLOAT32, DType.BFLOAT16]
    assert dict(pool.rtt_ms) == {
        ("home-1", "home-2"): 8.0,
        ("home-1", "lab"): 90.0,
        ("home-2", "lab"): 90.0,
    }
    as_json = {"nodes": [{"name": "a", "memory_gib": 1}]}
    assert len(read_pool(write(tmp_path, json.dumps(as_json), "pool.json")).nodes) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes = [", "is not TOML"),
        ("kv_tokens = 1", "at least one entry"),
        ("[[nodes]]\nname = 'a'", "memory_gib"),
        ("[[nodes]]\nmemory_gib = 1", "name"),
        ("[[nodes]]\nname = 'a'\nmemory_gib = -1", "above 0"),
        ("[[nodes]]\nname = 'a'\nmemory_gib = nan", "not a number: nan"),
        ("[[nodes]]\nname = 'a'\nmemory_gib = '1'", "not a number"),
        ("[[nodes]]\nname = 'a'\nmemory_gib = 1\nvram = 2", "unknown field `vram`"),
        ("[[nodes]]\nname = 'a'\nmemory_gib = 1\ndtype = 'int4'", "one of float32"),
        ("[[nodes]]\nname = 'a'\nmemory_gib = 1\ncount = 5000", "more than"),
        ("[[nodes]]\nname='a'\nmemory_gib=1\n[[nodes]]\nname='a'\nmemory_gib=1", "used twice"),
        ("[[nodes]]\nname='a'\nmemory_gib=1\n[regions]\n'x|y' = 3", "does not join"),
        ("memory = 3\n[[nodes]]\nname='a'\nmemory_gib=1", "unknown field `memory`"),
    ],
)
def test_a_pool_that_is_wrong_says_where(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_pool(write(tmp_path, text))


def test_a_pool_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*examples/pool\.toml"):
        read_pool(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read: is a directory"):
        read_pool(tmp_path)
