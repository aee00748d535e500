"""Llama 3's rope scaling, recovered from the per-frequency factors that a GGUF stores instead.

Source: "The Llama 3 Herd of Models" and Meta's reference code: wavelengths above
`context / low_freq_factor` are stretched by `factor`, those below `context / high_freq_factor`
stay, and the ones between are blended.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from plait.errors import ModelError
from plait.types import RopeScaling

_LOW, _HIGH, _CONTEXT_TOKENS = 1.0, 4.0, 8192  # the only values Meta has published
_TOLERANCE: Final = 1e-3


def llama3_factors(head_dim: int, rope_theta: float, scaling: RopeScaling) -> NDArray[np.float64]:
    """By what each of head_dim / 2 frequencies is divided. (head_dim // 2,)"""
    wavelengths = 2 * math.pi * rope_theta ** (np.arange(0, head_dim, 2) / head_dim)
    context, low, high = (
        scaling.original_context_tokens,
        scaling.low_freq_factor,
        scaling.high_freq_factor,
    )
    blend = np.clip((context / wavelengths - low) / (high - low), 0.0, 1.0)
    factors: NDArray[np.float64] = 1.0 / ((1.0 - blend) / scaling.factor + blend)
    return factors


def scaling_from_factors(
    factors: NDArray[np.float64], *, rope_theta: float, where: str
) -> RopeScaling | None:
    """The scaling that gives `factors`, None where they are all one.

    Raises:
        ModelError: no Llama 3 scaling gives them.
    """
    if np.allclose(factors, 1.0):
        return None
    scaling = RopeScaling(
        kind="llama3",
        factor=float(round(float(factors.max()), 4)),
        low_freq_factor=_LOW,
        high_freq_factor=_HIGH,
        original_context_tokens=_CONTEXT_TOKENS,
    )
    expected = llama3_factors(2 * len(factors), rope_theta, scaling)
    if not np.allclose(factors, expected, rtol=_TOLERANCE):
        raise ModelError(
            f"{where}: its rope factors are not Llama 3's; plait cannot run them",
            reason="model_unsupported",
        )
    return scaling
