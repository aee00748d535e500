"""Rotary position embedding and its extensions, as tables of rotations.

Su et al., "RoFormer" (2021). A head's channels are turned in pairs; the engine stores a pair side
by side (the loader reorders the rows of q and k once), so that a rotation is one complex product.
Angles are computed in float32, as the models were trained. Channels that are not rotated are pairs
that are multiplied by one.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from plait.errors import ModelError
from plait.types import ModelSpec, RopeScaling


@dataclass(frozen=True, slots=True)
class Rotations:
    """Rotations by position, (rows, head_dim / 2) complex64 each: of the layers with one base, and
    of those with a window, where they have a base of their own.

    Rows from `num_positions` on are for sequences that may grow longer than `switch_tokens`.
    """

    tables: tuple[Tensor, ...]
    num_positions: int
    switch_tokens: int | None = None

    def first_row(self, sequence_tokens: int) -> int:
        """Row of position 0 for a sequence that may have so many tokens."""
        is_long = self.switch_tokens is not None and sequence_tokens > self.switch_tokens
        return self.num_positions if is_long else 0


def rotation_tables(spec: ModelSpec, num_positions: int, device: torch.device) -> Rotations:
    """Rotations of positions [0, num_positions).

    Raises ModelError for a scaling that is not known.
    """
    scaling = spec.rope_scaling
    rows = _rotations(spec, num_positions, spec.rope_theta, scaling)
    switch: int | None = None
    if scaling is not None and scaling.kind == "longrope":
        switch = scaling.original_context_tokens
        if num_positions > switch:
            rows = torch.cat(
                [rows, _rotations(spec, num_positions, spec.rope_theta, _long(scaling))]
            )
        else:
            switch = None  # no sequence here grows that long
    tables = [rows]
    if spec.local_rope_theta is not None:
        tables.append(_rotations(spec, num_positions, spec.local_rope_theta, None))
    return Rotations(tuple(table.to(device) for table in tables), num_positions, switch)


def _rotations(
    spec: ModelSpec, num_positions: int, theta: float, scaling: RopeScaling | None
) -> Tensor:
    """(num_positions, head_dim / 2) complex64."""
    positions = torch.arange(num_positions, dtype=torch.float32)
    scale = 1.0
    rotary_dim = spec.rotary_dim or spec.head_dim
    frequencies = _base_frequencies(rotary_dim, theta)
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
    elif scaling.kind == "longrope":
        angles = torch.outer(positions, frequencies / torch.tensor(scaling.short_factors))
        scale = _longrope_scale(scaling)
    else:
        raise ModelError(
            f"{spec.model_id} extends its context by {scaling.kind!r} RoPE; "
            "plait knows linear, llama3, yarn, dynamic and longrope"
        )
    if scaling is not None and scaling.attention_factor is not None:
        scale = scaling.attention_factor
    rotated = torch.complex(angles.cos() * scale, angles.sin() * scale)
    kept = torch.ones(num_positions, (spec.head_dim - rotary_dim) // 2, dtype=rotated.dtype)
    return torch.cat([rotated, kept], dim=1)


def pair_channels(rows: Tensor, spec: ModelSpec) -> Tensor:
    """Reorder dimension 0 (heads * head_dim) from halves to pairs: channel j beside j + D/2 of the
    D rotated ones; the others stay behind them.

    Queries and keys are reordered alike, so their products stay what they were.
    """
    heads = rows.reshape(-1, spec.head_dim, *rows.shape[1:])
    rotary_dim = spec.rotary_dim or spec.head_dim
    rotated = heads[:, :rotary_dim]
    halves = rotated.reshape(len(heads), 2, rotary_dim // 2, *rows.shape[1:])
    pairs = halves.transpose(1, 2).flatten(1, 2)
    return torch.cat([pairs, heads[:, rotary_dim:]], dim=1).reshape(rows.shape)


def _long(scaling: RopeScaling) -> RopeScaling:
    """The same, for sequences longer than the original context."""
    return replace(scaling, short_factors=scaling.long_factors)


def _longrope_scale(scaling: RopeScaling) -> float:
    """Ding et al., "LongRoPE" (2024)."""
    if scaling.factor <= 1.0:
        return 1.0
    return math.sqrt(1.0 + math.log(scaling.factor) / math.log(scaling.original_context_tokens))


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
    dim = spec.rotary_dim or spec.head_dim

    def channel_of(num_turns: float) -> float:
        return dim * math.log(context / (num_turns * 2 * math.pi)) / (2 * math.log(spec.rope_theta))

    low, high = channel_of(scaling.beta_fast), channel_of(scaling.beta_slow)
    if scaling.truncates:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    channels = torch.arange(dim // 2, dtype=torch.float32)
    stretched_share = ((channels - low) / max(high - low, 0.001)).clamp(0.0, 1.0)
    return frequencies * ((1.0 - stretched_share) + stretched_share / scaling.factor)


def _dynamic_angles(positions: Tensor, scaling: RopeScaling, spec: ModelSpec) -> Tensor:
    """NTK-aware scaling that grows with the sequence: each position uses the base of a sequence
    that ends there, so the result does not depend on how a prompt was cut into chunks."""
    context = scaling.original_context_tokens or spec.context_tokens_max
    dim = spec.rotary_dim or spec.head_dim
    lengths = (positions + 1).clamp(min=context)
    stretch = scaling.factor * lengths / context - (scaling.factor - 1)
    thetas = spec.rope_theta * stretch ** (dim / (dim - 2))
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return positions.unsqueeze(1) / thetas.unsqueeze(1) ** exponents
