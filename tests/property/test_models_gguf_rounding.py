"""Rounding with a search is never worse than the library's, and leaves what fits as it is."""

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Quant
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks._least_blocks import BLOCK, least_errors
from plait.models.gguf_rounding import rounded

SEARCHED = (Quant.Q4_0, Quant.Q5_0)


@pytest.mark.parametrize("quant", SEARCHED, ids=lambda quant: quant.name)
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 100.0), st.sampled_from([2.0, 5.0, 50.0]))
def test_no_block_is_further_from_its_values(
    quant: Quant, seed: int, size: float, freedom: float
) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.standard_t(freedom, (3, 64)) * size).astype(np.float32)
    values[0, :32] = 0
    ours, theirs = (
        np.square(dequantize(stored, quant) - values).reshape(-1, 32).sum(axis=1)
        for stored in (rounded(values, quant), quantize(values, quant))
    )
    assert (ours <= theirs * (1 + 1e-3) + 1e-12).all()


@pytest.mark.parametrize("quant", SEARCHED, ids=lambda quant: quant.name)
def test_normal_values_come_nearer(quant: Quant) -> None:
    values = np.random.default_rng(1).normal(0, 0.02, (64, 256)).astype(np.float32)
    ours, theirs = (
        float(np.square(dequantize(stored, quant) - values).mean())
        for stored in (rounded(values, quant), quantize(values, quant))
    )
    assert ours < 0.93 * theirs


@pytest.mark.parametrize("quant", SEARCHED, ids=lambda quant: quant.name)
def test_what_was_rounded_before_stays(quant: Quant) -> None:
    values = np.random.default_rng(2).normal(0, 0.02, (8, 64)).astype(np.float32)
    once = dequantize(rounded(values, quant), quant)
    np.testing.assert_allclose(dequantize(rounded(once, quant), quant), once, rtol=2e-3, atol=1e-6)


def test_other_types_are_the_librarys() -> None:
    values = np.random.default_rng(3).normal(0, 0.02, (4, 64)).astype(np.float32)
    np.testing.assert_array_equal(rounded(values, Quant.Q8_0), quantize(values, Quant.Q8_0))


@pytest.mark.parametrize("freedom", [3.0, 50.0])
def test_hardly_any_scale_leaves_less(freedom: float) -> None:
    """Against every scale that rounds to other codes."""
    rng = np.random.default_rng(4)
    values = (rng.standard_t(freedom, (300, BLOCK)) * 0.02).astype(np.float32)
    found = np.square(dequantize(rounded(values, Quant.Q4_0), Quant.Q4_0) - values).sum(axis=1)
    least = least_errors(values)
    assert (found >= least * 0.995 - 1e-9).all(), "the twin is no minimum"
    assert found.sum() <= 1.005 * least.sum()
