"""The sampler's promises over random logits and parameters."""

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from node.engine.distribution import distribution
from node.engine.sampler import SequenceSampler
from plait.types import SamplingParams
from tests.unit.engine.test_sampler import naive_distribution

PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0.05, 3.0),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 0.9),
    seed=st.integers(-(2**63), 2**64),
)
LOGITS = st.lists(
    st.integers(-1280, 1280).map(lambda step: step / 64), min_size=1, max_size=40, unique=True
)
"""Apart by more than rounding: which of two equal tokens is cut off is nobody's business."""


@settings(max_examples=150, deadline=None)
@given(params=PARAMS, logits=LOGITS, position=st.integers(0, 2**31))
def test_a_token_is_drawn_from_what_is_kept(
    params: SamplingParams, logits: list[float], position: int
) -> None:
    row = torch.tensor(logits)
    kept = distribution(row, params)
    assert abs(float(kept.sum()) - 1) < 1e-9
    assert float(kept[int(row.argmax())]) > 0
    token = SequenceSampler(params).draw(row, position).token_id
    assert float(kept[token]) > 0
    assert SequenceSampler(params).draw(row, position).token_id == token


@settings(max_examples=150, deadline=None)
@given(params=PARAMS, logits=LOGITS)
@example(params=SamplingParams(temperature=0.05, top_p=1 - 2**-53), logits=[0.0, -1 / 64, 1.84375])
def test_the_distribution_is_the_definitions(params: SamplingParams, logits: list[float]) -> None:
    """Up to a rounding of the cut: the kept sets may differ by one token at the very edge, and by
    tokens below what a sum of probabilities in float64 can tell from 1."""
    row = torch.tensor(logits)
    got = distribution(row, params)
    expected = torch.tensor(naive_distribution(row.tolist(), params), dtype=torch.float64)
    both = (got > 0) & (expected > 0)
    edge = ((got > 0) ^ (expected > 0)) & (torch.maximum(got, expected) > 1e-12)
    assert int(edge.sum()) <= 1
    if not bool(edge.any()):
        torch.testing.assert_close(got[both], expected[both], atol=1e-6, rtol=1e-4)
