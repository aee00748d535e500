"""Rotary position embedding and its extensions, as tables of rotations.

Su et al., "RoFormer" (2021). A head's channels are turned in pairs; the engine stores a pair side
by side (the loader reorders the rows of q and k once), so that a rotation is one complex product.
Angles are computed in float32, as the models were trained.
"""

import math

import torch
from torch import Tensor

from plait.errors import ModelError
from plait.types import ModelSpec, RopeScaling

_YARN_BETA_FAST = 32.0
_YARN_BETA_SLOW = 1.0


def rotation_table(spec: ModelSpec, num_positions: int, device: torch.device) -> Tensor:
    """Rotations of positions [0, num_positions): (positions, head_dim / 2), complex64.

    Raises ModelError for a scaling that is not known.
    """
    positions = torch.arange(num_positions, dtype=torch.float32)
    scale = 1.0
    scaling = spec.rope_scaling
    frequencies = _base_frequencies(spec.head_dim, spec.rope_theta)
    if scaling is None or scaling.kind == "default":
        angles = torch.outer(positions, frequencies)
    elif scaling.kind == "linear":
        angles = torch.outer(positions, frequencies / scaling.factor)
    elif scaling.kind == "llama3":
        angles = torch.outer(positions, _llama3_frequencies(frequencies, scaling))
    elif scaling.kind == "yarn":
        angles = torch.outer(positions, _yarn_frequencies(frequencies, scaling, spec))
        scale = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    elif scaling.kind == "dynamic":
        angles = _dynamic_angles(positions, scaling, spec)
    else:
        raise ModelError(
            f"{spec.model_id} extends its context by {scaling.kind!r} RoPE; "
            "plait knows linear, llama3, yarn and dynamic"
        )
    rotations: Tensor = torch.complex(angles.cos() * scale, angles.sin() * scale).to(device)
    return rotations


def pair_channels(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder dimension 0 (heads * head_dim) from halves to pairs: channel j beside j + D/2.

    Queries and keys are reordered alike, so their products stay what they were.
    """
    halves = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def _base_frequencies(head_dim: int, theta: float) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / (theta**exponents)


def _llama3_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: long waves are stretched by the factor, short ones kept, between them blended."""
    turns = scaling.original_context_tokens * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (kept_share + (1.0 - kept_share) / scaling.factor)


def _yarn_frequencies(frequencies: Tensor, scaling: RopeScaling, spec: ModelSpec) -> Tensor:
    """Peng et al., "YaRN" (2023), section 3.2: a linear ramp between kept and stretched waves."""
    context = scaling.original_context_tokens or spec.context_tokens_max
    dim = spec.head_dim

    def channel_of(num_turns: float) -> float:
        return dim * math.log(context / (num_turns * 2 * math.pi)) / (2 * math.log(spec.rope_theta))

    low = max(math.floor(channel_of(_YARN_BETA_FAST)), 0)
    high = min(math.ceil(channel_of(_YARN_BETA_SLOW)), dim - 1)
    channels = torch.arange(dim // 2, dtype=torch.float32)
    stretched_share = ((channels - low) / max(high - low, 0.001)).clamp(0.0, 1.0)
    return frequencies * ((1.0 - stretched_share) + stretched_share / scaling.factor)


def _dynamic_angles(positions: Tensor, scaling: RopeScaling, spec: ModelSpec) -> Tensor:
    """NTK-aware scaling that grows with the sequence: each position uses the base of a sequence
    that ends there, so the result does not depend on how a prompt was cut into chunks."""
    context = scaling.original_context_tokens or spec.context_tokens_max
    dim = spec.head_dim
    lengths = (positions + 1).clamp(min=context)
    stretch = scaling.factor * lengths / context - (scaling.factor - 1)
    thetas = spec.rope_theta * stretch ** (dim / (dim - 2))
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return positions.unsqueeze(1) / thetas.unsqueeze(1) ** exponents
