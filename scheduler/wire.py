"""Which dtype activations have on a hop; see decision 120."""

from typing import Final

from plait.types import DType

TOLERATED_MS_PER_TOKEN: Final = 0.5
"""A transfer that costs a prompt of 500 tokens a quarter of a second is not worth a digit."""

_WIDEST_FIRST: Final = (DType.FLOAT32, DType.FLOAT16, DType.INT8)


def hop_dtype(hidden_size: int, *, bytes_per_s: float, stage_ms_per_token: float) -> DType:
    """The widest dtype in which a token's row takes no longer over the link than its prefill took
    on the stage that sends it, so that the stage and not the link decides; the smallest where there
    is none.

    `stage_ms_per_token` is a prompt token's share of a prefill step: prompts fill a link most.
    """
    allowed_ms = max(TOLERATED_MS_PER_TOKEN, stage_ms_per_token)
    for dtype in _WIDEST_FIRST:
        if 1e3 * dtype.row_bytes(hidden_size) <= allowed_ms * bytes_per_s:
            return dtype
    return _WIDEST_FIRST[-1]
