"""Matrices as codes of few bits with scales: what quantised files hold, whatever their format.

    w[o, i] = scale[o, i] * (code[o, i] - offset) + least[o, i]

A scale or a least value is shared by a group of neighbouring columns, and may itself be a code
times a coarser scale, as in GGUF's K-quants.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from plait.errors import WeightsError

Floats = NDArray[np.float32]
Stored = NDArray[np.generic]

_FLOAT8_NAN: Final = 0x7F


class CodeKind(StrEnum):
    """How one code is to be read."""

    UINT4 = "uint4"
    UINT5 = "uint5"
    UINT6 = "uint6"
    INT8 = "int8"
    FLOAT8 = "float8"
    """e4m3: a sign, four bits of exponent (bias 7), three of mantissa; no infinities."""

    @property
    def bits(self) -> int:
        """Of one code."""
        return {"uint4": 4, "uint5": 5, "uint6": 6}.get(self, 8)


def _float8_values() -> Floats:
    codes = np.arange(256)
    exponents, mantissas = (codes >> 3) & 15, codes & 7
    is_normal = exponents > 0
    values = np.ldexp(
        np.where(is_normal, 8.0 + mantissas, mantissas), np.maximum(exponents, 1) - 10
    )
    values[(codes & _FLOAT8_NAN) == _FLOAT8_NAN] = np.nan
    signed: Floats = np.where(codes & 128, -values, values).astype(np.float32)
    return signed


FLOAT8_VALUES: Final = _float8_values()
"""What each of the 256 codes of FLOAT8 means."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CodedMatrix:
    """A matrix (out, in) of codes. Arrays have `out` rows; their columns are groups, as many as
    divide `in`.

    codes: uint8 (out, in), one code a byte.
    scale: float16 or float32. scale_codes: integers that multiply it, in narrower groups.
    least: as scale, added. least_codes: integers that multiply it; without a `least` they are zero
    points: -scale * code is added.
    columns: where column j of the codes belongs, int32 (in,); None: at j.
    """

    kind: CodeKind
    codes: NDArray[np.uint8]
    offset: int = 0
    scale: Stored
    scale_codes: Stored | None = None
    least: Stored | None = None
    least_codes: Stored | None = None
    columns: NDArray[np.int32] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def dense(self) -> Floats:
        """The values, float32 (out, in)."""
        scale = _product(self.scale, self.scale_codes)
        values = self._numbers()
        _grouped(values, scale)[...] *= scale[..., None]
        least = self._least(scale)
        if least is not None:
            _grouped(values, least)[...] += least[..., None]
        if self.columns is None:
            return values
        placed = np.empty_like(values)
        placed[:, self.columns] = values
        return placed

    def cut(self, rows: Sequence[range] | None, columns: range | None) -> "CodedMatrix | None":
        """Rows, one stretch after the other, and of these some columns; None: all. Groups that a
        cut divides become narrower. None comes back where columns lie in an order of their own."""
        if columns is not None and self.columns is not None:
            return None
        index = None if rows is None else np.concatenate([np.arange(r.start, r.stop) for r in rows])

        def part(groups: Stored | None) -> Stored | None:
            if groups is None:
                return None
            chosen = groups if index is None else groups[index]
            if columns is None:
                return chosen
            group = self.codes.shape[1] // groups.shape[1]
            narrow = math.gcd(group, columns.start, columns.stop)
            return chosen[:, np.arange(columns.start, columns.stop, narrow) // group]

        codes = self.codes if index is None else self.codes[index]
        scale = part(self.scale)
        assert scale is not None
        return replace(
            self,
            codes=codes if columns is None else codes[:, columns.start : columns.stop],
            scale=scale,
            scale_codes=part(self.scale_codes),
            least=part(self.least),
            least_codes=part(self.least_codes),
        )

    def require_finite(self, *, name: str, where: str) -> None:
        """Raises WeightsError(reason="weights_not_finite") naming tensor and file."""
        floats = [array for array in (self.scale, self.least) if array is not None]
        is_finite = all(bool(np.isfinite(array).all()) for array in floats)
        if is_finite and self.kind is CodeKind.FLOAT8:
            is_finite = not bool(((self.codes & _FLOAT8_NAN) == _FLOAT8_NAN).any())
        if not is_finite:
            raise WeightsError(
                f"{where}: tensor {name} has NaN or infinite values; the file is damaged, pull it "
                "again",
                reason="weights_not_finite",
            )

    def _numbers(self) -> Floats:
        match self.kind:
            case CodeKind.FLOAT8:
                return FLOAT8_VALUES[self.codes]
            case CodeKind.INT8:
                return self.codes.view(np.int8).astype(np.float32)
        return self.codes.astype(np.float32) - np.float32(self.offset)

    def _least(self, scale: Floats) -> Floats | None:
        if self.least is not None:
            return _product(self.least, self.least_codes)
        if self.least_codes is None:
            return None
        return -_product(scale, self.least_codes)


def _product(coarse: Stored, codes: Stored | None) -> Floats:
    values: Floats = coarse.astype(np.float32)
    if codes is None:
        return values
    repeated = np.repeat(values, codes.shape[1] // values.shape[1], axis=1)
    product: Floats = repeated * codes.astype(np.float32)
    return product


def _grouped(values: Floats, groups: Floats) -> Floats:
    """A view (out, groups, columns of a group)."""
    return values.reshape(*groups.shape, -1)
