"""Four-bit weights before they are packed: codes with a scale and a least value for each group.

w = scale * code + least. This is what GGUF's Q4_0, Q4_1 and Q4_K, GPTQ and AWQ all come to.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

GROUPS = (128, 64, 32)
"""Columns of a group, the fewest bits first: torch's kernels take these."""

_CODE_MAX = 15
_SHRINKS = (1.0, 0.96, 0.92, 0.88, 0.84)
_ON_GRID = 0.01
"""How far from whole a step may be, for values that went through float16 or bfloat16 once more."""

_FEW_COLUMNS = 6
"""Enough to rule a grid out for nearly every group that was never on one."""

_SCALE_MIN = 1e-10


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """codes (out, in) uint8 from 0 to 15; scales and least values (out, groups) float32."""

    codes: Tensor
    scale: Tensor
    least: Tensor

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return self.codes.shape[1] // self.scale.shape[1]

    def dense(self) -> Tensor:
        """The values, float32 (out, in)."""
        codes = self.codes.view(*self.scale.shape, self.group).float()
        values = codes.mul_(self.scale.unsqueeze(-1)).add_(self.least.unsqueeze(-1))
        return values.view(self.codes.shape)


def group_for(num_columns: int) -> int | None:
    """Columns of a group in a weight of this width; None where four bits do not fit it."""
    return next((group for group in GROUPS if num_columns % group == 0), None)


def quantize_grouped(weight: Tensor, group: int) -> GroupedWeight:
    """(out, in) to 4 bits in groups of `group` columns.

    What was 4 bits before (GGUF's Q4_0, Q4_1 and Q4_K, GPTQ, AWQ) gets its own codes back: a group
    whose values lie on a grid of at most 16 points keeps that grid. Any other group is rounded to
    the range, of a few, with the least squared error: its ends count less than the many between.
    """
    values = weight.float().reshape(-1, group)
    low, high = values.amin(-1), values.amax(-1)
    scale, least = (high - low) / _CODE_MAX, low.clone()
    pending = (high > low).nonzero().squeeze(1)
    for num_steps in range(_CODE_MAX, 0, -1):
        if len(pending) == 0:
            break
        likely = _on_grid(values, low, high, pending, num_steps, columns=_FEW_COLUMNS)
        found = _on_grid(values, low, high, likely, num_steps, columns=group)
        scale[found] = (high[found] - low[found]) / num_steps
        is_pending = torch.ones(len(values), dtype=torch.bool, device=values.device)
        is_pending[found] = False
        pending = pending[is_pending[pending]]
    if len(pending) > 0:
        scale[pending], least[pending] = _best_range(values[pending], low[pending], high[pending])
    scale.clamp_(min=_SCALE_MIN)
    codes = values.sub(least.unsqueeze(1)).div_(scale.unsqueeze(1)).round_().clamp_(0, _CODE_MAX)
    num_out = weight.shape[0]
    return GroupedWeight(
        codes.to(torch.uint8).view(weight.shape), scale.view(num_out, -1), least.view(num_out, -1)
    )


def _on_grid(
    values: Tensor, low: Tensor, high: Tensor, which: Tensor, num_steps: int, *, columns: int
) -> Tensor:
    """Those of the groups `which` whose first `columns` values lie on `num_steps` equal steps."""
    base = low[which].unsqueeze(1)
    step = (high[which].unsqueeze(1) - base) / num_steps
    steps = (values[which, :columns] - base) / step
    return which[steps.sub(steps.round()).abs_().amax(-1) <= _ON_GRID]


def _best_range(values: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """(scale, least) of each group (G, columns), between its `low` and `high` (G,)."""
    middle, half = (low + high) / 2, (high - low) / 2
    best_error = torch.full_like(low, torch.inf)
    best_scale, best_least = torch.empty_like(low), torch.empty_like(low)
    for shrink in _SHRINKS:
        scale = (2 * shrink * half / _CODE_MAX).clamp_(min=_SCALE_MIN)
        least = middle - shrink * half
        codes = values.sub(least.unsqueeze(1)).div_(scale.unsqueeze(1)).round_()
        rounded = codes.clamp_(0, _CODE_MAX).mul_(scale.unsqueeze(1)).add_(least.unsqueeze(1))
        error = rounded.sub_(values).square_().sum(-1)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_scale = torch.where(better, scale, best_scale)
        best_least = torch.where(better, least, best_least)
    return best_scale, best_least
