"""Hidden states as int8 rows: what a slow hop carries. Plain numpy; see decision 120.

A row of `hidden` numbers, each row by itself, little endian:

    hidden x int8     the numbers, in units of their group's scale
    groups x uint8    a scale for every 32 of them: 2 ** ((code - 180) / 8); code 0: all are zero
    outliers x uint16 places of the largest numbers, ascending; these are zero above
    outliers x float16 the largest numbers themselves

The residual stream of a Llama has a few channels that are thousands of times larger than the rest;
in a group with one of them all others would round to zero. One byte a scale, in steps of 9 %, costs
a bit's tenth of precision and half of what a float16 would.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from plait.types.model import INT8_GROUP, int8_outliers

Floats = npt.NDArray[np.float32]

MAGNITUDE_MAX: Final = 65_504.0
"""Of a number that can be carried, as in float16."""
_Q_MAX: Final = 127
_STEPS_PER_OCTAVE: Final = 8
_CODE_OF_ONE: Final = 180
_SCALES: Final = np.exp2((np.arange(256) - _CODE_OF_ONE) / _STEPS_PER_OCTAVE).astype(np.float32)
_SCALES[0] = 0.0
_ERROR_SHARE: Final = 0.5 * 2 ** (1 / _STEPS_PER_OCTAVE) / _Q_MAX


def error_bound(largest: float) -> float:
    """The most by which a number changes, `largest` being its group's largest, outliers aside."""
    return max(_ERROR_SHARE * largest, 0.5 * float(_SCALES[1])) * (1 + 1e-5)


def encode_rows(rows: Floats) -> bytes:
    """(tokens, hidden) float32 -> bytes. Raises ValueError where a number is not finite or too
    large to be carried."""
    if not bool((np.abs(rows) <= MAGNITUDE_MAX).all()):  # NaN is not below anything
        raise ValueError(f"a number is not finite, or above {MAGNITUDE_MAX:g}")
    num_rows, hidden = rows.shape
    num_groups, num_outliers = -(-hidden // INT8_GROUP), int8_outliers(hidden)
    rest = np.zeros((num_rows, num_groups * INT8_GROUP), np.float32)
    rest[:, :hidden] = rows
    cut = hidden - num_outliers
    places = np.argpartition(np.abs(rows), cut, axis=1)[:, cut:]
    places.sort(axis=1)
    large = np.take_along_axis(rows, places, axis=1)
    np.put_along_axis(rest, places, 0.0, axis=1)
    groups = rest.reshape(num_rows, num_groups, INT8_GROUP)
    codes = _codes(np.abs(groups).max(axis=2))
    inverse = np.divide(1.0, _SCALES[codes], out=np.zeros(codes.shape, np.float32), where=codes > 0)
    quantised = np.rint(groups * inverse[:, :, None]).astype(np.int8)
    parts = (
        quantised.reshape(num_rows, -1)[:, :hidden].view(np.uint8),
        codes,
        places.astype("<u2").view(np.uint8),
        large.astype("<f2").view(np.uint8),
    )
    return np.concatenate(parts, axis=1).tobytes()


def decode_rows(payload: bytes | memoryview, num_rows: int, hidden: int) -> Floats:
    """Bytes from a neighbour -> (tokens, hidden) float32. Raises ValueError for what no encoder
    makes: another length, outliers that are not finite or not in their places."""
    num_groups, num_outliers = -(-hidden // INT8_GROUP), int8_outliers(hidden)
    row_bytes = hidden + num_groups + 4 * num_outliers
    flat = np.frombuffer(payload, np.uint8)
    if len(flat) != num_rows * row_bytes:
        raise ValueError(f"{len(flat)} bytes for {num_rows} int8 rows of {row_bytes}")
    table = flat.reshape(num_rows, row_bytes)
    ends = np.cumsum([hidden, num_groups, 2 * num_outliers])
    quantised, codes, places, large = np.split(table, ends, axis=1)
    places = np.ascontiguousarray(places).view("<u2").astype(np.int64)
    if bool((places >= hidden).any()) or bool((np.diff(places, axis=1) <= 0).any()):
        raise ValueError("outliers are not in ascending places of the row")
    values = np.ascontiguousarray(large).view("<f2").astype(np.float32)
    if not bool(np.isfinite(values).all()):
        raise ValueError("an outlier is NaN or Inf")
    scales = np.repeat(_SCALES[codes], INT8_GROUP, axis=1)[:, :hidden]
    rows = np.ascontiguousarray(quantised).view(np.int8) * scales
    np.put_along_axis(rows, places, values, axis=1)
    return rows


def _codes(largest: Floats) -> npt.NDArray[np.uint8]:
    """The smallest scale of each group in which its largest number still fits."""
    with np.errstate(divide="ignore"):
        exact = _STEPS_PER_OCTAVE * np.log2(largest / _Q_MAX) + _CODE_OF_ONE
    codes = np.clip(np.ceil(exact - 1e-3), 1, 255).astype(np.uint8)
    codes[largest == 0.0] = 0
    return codes
