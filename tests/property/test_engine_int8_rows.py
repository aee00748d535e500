"""Int8 rows of a hop: how far numbers may move, what is kept exactly, what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from node.engine.int8_rows import Floats, decode_rows, encode_rows, error_bound
from plait.types import DType
from plait.types.model import INT8_GROUP, int8_outliers

magnitudes = st.floats(-65_504.0, 65_504.0, width=32, allow_nan=False)
shapes = st.tuples(st.integers(1, 4), st.integers(1, 200))


def through(rows: Floats) -> Floats:
    payload = encode_rows(rows)
    assert len(payload) == len(rows) * DType.INT8.row_bytes(rows.shape[1])
    return decode_rows(payload, *rows.shape)


@given(arrays.arrays(np.float32, shapes, elements=magnitudes))
def test_numbers_move_by_less_than_half_a_unit_of_their_group(rows: Floats) -> None:
    back = through(rows)
    for row, there in zip(rows, back, strict=True):
        order = np.argsort(np.abs(row), kind="stable")
        rest = np.abs(row).copy()
        rest[order[len(row) - int8_outliers(len(row)) :]] = 0.0
        for start in range(0, len(row), INT8_GROUP):
            part = slice(start, start + INT8_GROUP)
            # Which of equals is an outlier is open, so the bound is that of the larger group.
            ties = np.abs(row[part])[np.abs(row[part]) <= rest.max(initial=0.0)]
            bound = error_bound(float(ties.max(initial=0.0)))
            close = np.abs(row[part] - there[part]) <= bound
            kept = np.abs(row[part] - there[part]) <= np.abs(row[part]) * 2.0**-10
            assert (close | kept).all()


@given(arrays.arrays(np.float32, st.tuples(st.just(1), st.integers(1, 200)), elements=magnitudes))
def test_the_largest_are_as_exact_as_in_float16(rows: Floats) -> None:
    largest = np.abs(rows[0]).max()
    among_equals = np.abs(rows[0]) == largest
    assert np.float16(largest) in np.abs(through(rows)[0, among_equals])


def test_an_outlier_leaves_the_others_of_its_group_alone() -> None:
    rows = np.linspace(-1.0, 1.0, 576, dtype=np.float32)[None]
    rows[0, 40] = 24_926.0
    back = through(rows)
    assert back[0, 40] == np.float16(24_926.0)
    assert np.abs(np.delete(back - rows, 40)).max() <= error_bound(1.0)


def test_zeros_stay_zeros() -> None:
    assert not through(np.zeros((3, 70), np.float32)).any()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 70_000.0])
def test_numbers_that_no_row_can_carry_are_refused(wrong: float) -> None:
    rows = np.ones((2, 64), np.float32)
    rows[1, 5] = wrong
    with pytest.raises(ValueError, match="not finite"):
        encode_rows(rows)


@given(st.binary(min_size=0, max_size=400), st.integers(1, 3), st.integers(1, 130))
def test_whatever_arrives_is_read_or_refused(payload: bytes, num_rows: int, hidden: int) -> None:
    try:
        rows = decode_rows(payload, num_rows, hidden)
    except ValueError:
        return
    assert rows.shape == (num_rows, hidden) and bool(np.isfinite(rows).all())


@given(st.data(), st.integers(1, 3), st.integers(1, 130))
def test_bytes_of_the_right_length_are_read_or_refused(
    data: st.DataObject, num_rows: int, hidden: int
) -> None:
    size = num_rows * DType.INT8.row_bytes(hidden)
    payload = data.draw(st.binary(min_size=size, max_size=size))
    test_whatever_arrives_is_read_or_refused.hypothesis.inner_test(  # type: ignore[attr-defined]
        payload, num_rows, hidden
    )


def _spoilt(at: int, value: bytes) -> bytes:
    payload = bytearray(encode_rows(np.ones((1, 512), np.float32)))
    payload[at : at + len(value)] = value
    return bytes(payload)


PLACES = 512 + 512 // INT8_GROUP


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (PLACES, (600).to_bytes(2, "little"), "places"),
        (PLACES, (5).to_bytes(2, "little") * 2, "places"),
        (PLACES + 4, np.float16(np.nan).tobytes(), "NaN or Inf"),
        (PLACES + 4, np.float16(np.inf).tobytes(), "NaN or Inf"),
        (PLACES + 8, b"x", "bytes for 1 int8 rows"),
    ],
)
def test_rows_that_no_encoder_makes_are_refused(at: int, value: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode_rows(_spoilt(at, value), 1, 512)


@pytest.mark.parametrize("hidden", [576, 2048, 4096, 8192])
def test_a_row_is_little_more_than_half_of_a_float16_one(hidden: int) -> None:
    assert DType.INT8.row_bytes(hidden) <= 0.532 * DType.FLOAT16.row_bytes(hidden)
