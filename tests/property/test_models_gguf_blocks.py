"""Codes and scales of GGUF blocks mean what the format's own library reads from them."""

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from plait.models.coded import FLOAT8_VALUES
from plait.models.gguf_blocks import CODED_QUANTS, coded_from_blocks

_SCALES_AT = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def random_blocks(
    quant: GGMLQuantizationType, num_rows: int, num_blocks: int, seed: int
) -> NDArray[np.uint8]:
    """Rows of any bytes, but for scales, which are finite."""
    rng = np.random.default_rng(seed)
    size = GGML_QUANT_SIZES[quant][1]
    blocks = rng.integers(0, 256, (num_rows, num_blocks, size), dtype=np.uint8)
    for at in _SCALES_AT.get(quant.name, (0,)):
        scales = rng.normal(0, 0.01, (num_rows, num_blocks, 1)).astype("<f2")
        blocks[..., at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(num_rows, -1)


@pytest.mark.parametrize("quant", sorted(CODED_QUANTS), ids=lambda quant: quant.name)
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_codes_are_what_the_library_dequantises(
    quant: GGMLQuantizationType, num_rows: int, num_blocks: int, seed: int
) -> None:
    rows = random_blocks(quant, num_rows, num_blocks, seed)
    coded = coded_from_blocks(rows, quant)
    assert coded is not None
    np.testing.assert_array_equal(coded.dense(), dequantize(rows, quant))
    assert int(coded.codes.max()) < 2**coded.kind.bits


def test_types_without_codes_are_left_alone() -> None:
    assert coded_from_blocks(np.zeros((2, 64), np.uint8), GGMLQuantizationType.F16) is None


def test_eight_bit_floats() -> None:
    assert FLOAT8_VALUES[[0x00, 0x01, 0x08, 0x38, 0x7E]].tolist() == [
        0.0,
        2**-9,
        2**-6,
        1.0,
        448.0,
    ]
    assert FLOAT8_VALUES[0xB8] == -1.0
    assert np.isnan(FLOAT8_VALUES[[0x7F, 0xFF]]).all()
