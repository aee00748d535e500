"""What a node makes of its owner's settings."""

from dataclasses import replace
from pathlib import Path

import pytest

from node.choices import kv_dtype_of, memory_limit, pick_allowed, too_small
from node.config import NodeConfig
from node.core.events import ModelOffered
from node.owner.settings import read_settings
from plait.errors import ConfigError
from plait.types import KvDtype, ModelSource, SourceKind
from tests.unit.node.fake_engine import tiny_spec

OFFER = ModelOffered(tiny_spec(), ModelSource(kind=SourceKind.PATH, name="none"))


def config(*sets: str, device: str = "auto", memory_bytes: int | None = None) -> NodeConfig:
    return NodeConfig(
        home=Path("none"),
        device=device,
        memory_bytes=memory_bytes,
        owner=read_settings(Path("none"), environ={}, flags=sets),
    )


def test_the_first_device_that_is_allowed_and_there() -> None:
    assert pick_allowed(config('devices=["cuda:7", "cpu"]')).kind == "cpu"
    with pytest.raises(ConfigError, match="CUDA"):
        pick_allowed(config('devices=["cuda:7"]'))


def test_keys_and_values_are_native_unless_the_owner_says_otherwise() -> None:
    asked, file = replace(config(device="cpu"), kv_dtype="int8"), config("kv_dtype=int8")
    assert pick_allowed(config(device="cpu")).kv_dtype is KvDtype.NATIVE
    assert pick_allowed(asked).kv_dtype is KvDtype.INT8
    assert kv_dtype_of(file) is KvDtype.INT8
    assert kv_dtype_of(replace(file, kv_dtype="native")) is KvDtype.NATIVE
    assert kv_dtype_of(replace(asked, tensor_parallel=2)) is KvDtype.INT8


def test_the_smaller_of_two_limits_of_memory_holds() -> None:
    assert memory_limit(config(), "cpu") is None
    assert memory_limit(config("ram_max_gb=2", memory_bytes=5 << 30), "cpu") == 2 << 30
    assert memory_limit(config("ram_max_gb=2", memory_bytes=1 << 30), "cpu") == 1 << 30
    assert memory_limit(config("vram_max_gb=2", memory_bytes=5 << 30), "cpu") == 5 << 30


def test_a_limit_that_no_layer_fits_says_how_much_is_missing() -> None:
    wide = ModelOffered(tiny_spec(context=4_096), OFFER.source)
    small = config("ram_max_gb=0.0625", device="cpu")
    device = pick_allowed(small)
    assert too_small(small, device, [wide]) is None
    assert too_small(config(device="cpu"), device, [wide]) is None
    large = ModelOffered(
        replace(tiny_spec(), hidden_size=8_192, intermediate_size=28_672), OFFER.source
    )
    assert too_small(small, device, [wide, large]) is None, "one that fits is enough"
    reason = too_small(small, device, [large])
    assert reason is not None and reason.code == "limits_too_low"
    assert reason.message.startswith("--set: ram_max_gb is too low for even one layer")
    assert "MiB more than the 64 MiB" in reason.message
