"""The planner's memory and the engine's: what the plan says fits, fits."""

import pytest

from node.engine.memory import plan_memory
from plait.types import DType, LayerSpan
from scheduler.cost import layers_max, need_bytes
from tests.unit.scheduler.pools import node, tiny_model


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
@pytest.mark.parametrize("span", [(0, 30), (0, 9), (9, 21), (21, 30), (29, 30)])
def test_the_engine_loads_what_the_planner_thinks_fits(span: tuple[int, int], dtype: DType) -> None:
    spec, kv_tokens = tiny_model(), 2048
    profile = node("a", dtype=dtype)
    usable = need_bytes(profile, spec, LayerSpan(*span), kv_tokens)
    plan = plan_memory(
        spec,
        LayerSpan(*span),
        dtype,
        usable_bytes=usable,
        kv_tokens_min=kv_tokens,
        kv_tokens_max=kv_tokens,
        step_tokens_max=512,
        packs_weights=True,
    )
    assert plan.kv_tokens == kv_tokens


def test_the_most_layers_fit_and_one_more_does_not() -> None:
    spec = tiny_model()
    profile = node("a", memory_mib=300)
    most = layers_max(profile, spec, 1024, is_first=True, is_last=False)
    fits = need_bytes(profile, spec, LayerSpan(0, most), 1024)
    above = need_bytes(profile, spec, LayerSpan(0, most + 1), 1024)
    assert fits <= profile.memory_bytes < above
