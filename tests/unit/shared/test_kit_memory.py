"""The tests' own caps: a network that claims to need so many nodes does need them."""

import itertools
from dataclasses import replace

import pytest

from plait.types import LayerSpan, ModelSpec
from scheduler.cost import need_bytes
from tests.kit.memory import cap_for_stages
from tests.unit.node.fake_engine import tiny_spec
from tests.unit.shell.test_journal import PROFILE


def fits(spec: ModelSpec, cap_bytes: int, num_stages: int, kv_tokens: int) -> bool:
    """Whether some cut into so many stages keeps each within the cap, as planners count."""
    profile = replace(PROFILE, memory_bytes=cap_bytes)
    kv_tokens = min(kv_tokens, spec.context_tokens_max)
    for cuts in itertools.combinations(range(1, spec.num_layers), num_stages - 1):
        spans = [LayerSpan(a, b) for a, b in itertools.pairwise((0, *cuts, spec.num_layers))]
        if all(need_bytes(profile, spec, span, kv_tokens) <= cap_bytes for span in spans):
            return True
    return False


@pytest.mark.parametrize("num_layers", [4, 5, 30])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
@pytest.mark.parametrize("context", [512, 4_096])
def test_so_many_nodes_are_enough_and_fewer_are_not(
    num_layers: int, num_stages: int, context: int
) -> None:
    spec = replace(tiny_spec(num_layers, context=context), vocab_size=60)
    cap_bytes = cap_for_stages(spec, num_stages, 1_024)
    assert cap_bytes is not None
    assert fits(spec, cap_bytes, num_stages, 1_024)
    assert not fits(spec, cap_bytes, num_stages - 1, 1_024)


def test_one_node_may_hold_all_and_no_stage_is_empty() -> None:
    assert cap_for_stages(tiny_spec(4), 1, 1_024) is None
    with pytest.raises(ValueError, match="4 layers need no 5 nodes"):
        cap_for_stages(tiny_spec(4), 5, 1_024)
    with pytest.raises(ValueError, match="holds 3 too"):  # a vocabulary that outweighs the layers
        cap_for_stages(tiny_spec(4), 4, 1_024)
