"""Weights on their way into a layout: dense, as codes, or some of each one below the other."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from node.engine.layouts.coded import CodedWeight
from node.engine.linear import Linear


@dataclass(frozen=True, slots=True, eq=False)
class StackedWeight:
    """Weights of one width that cannot be one, in the order of their rows."""

    parts: tuple[Tensor | CodedWeight, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]


Weight = Tensor | CodedWeight | StackedWeight
"""A matrix (out, in)."""


def stacked(weights: Sequence[Weight]) -> Weight:
    """One below the other, as few parts as possible."""
    parts: list[Tensor | CodedWeight] = []
    for weight in weights:
        for part in weight.parts if isinstance(weight, StackedWeight) else (weight,):
            last = parts[-1] if parts else None
            if isinstance(last, Tensor) and isinstance(part, Tensor) and last.dtype is part.dtype:
                parts[-1] = torch.cat([last, part])
            elif (
                isinstance(last, CodedWeight)
                and isinstance(part, CodedWeight)
                and last.is_like(part)
            ):
                parts[-1] = last.above(part)
            else:
                parts.append(part)
    return parts[0] if len(parts) == 1 else StackedWeight(tuple(parts))


def with_rows(weight: Tensor | CodedWeight, index: Tensor) -> Tensor | CodedWeight:
    """Rows by their numbers (n,), which may lie on another device."""
    if isinstance(weight, Tensor):
        return weight[index.to(weight.device)]
    index = index.to(weight.low.device)
    return weight.map_rows(lambda tensor: tensor[index])


class StackedLinear:
    """Products beside each other, over the same rows."""

    __slots__ = ("_linears",)

    def __init__(self, linears: Sequence[Linear]) -> None:
        self._linears = tuple(linears)

    @property
    def weight_bytes(self) -> int:
        return sum(linear.weight_bytes for linear in self._linears)

    def __call__(self, rows: Tensor) -> Tensor:
        return torch.cat([linear(rows) for linear in self._linears], dim=1)

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        return self(rows).add_(residual)
