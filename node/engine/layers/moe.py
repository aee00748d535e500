"""A mixture of experts: every row goes through the few MLPs that a router picks for it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from node.engine.layers.mlp import GatedMlp
from node.engine.linear import ROWS_MIN, Linear


class MixtureOfExperts:
    """residual + the sum of share * expert(x) over the chosen experts. Fedus et al. (2021),
    Jiang et al., "Mixtral of Experts" (2024).

    Each expert runs once a step over all rows that chose it, padded to `ROWS_MIN`, and a row's
    experts are added in their order: its result does not depend on the rows beside it.
    `renormalises`: the chosen experts' shares sum to one.
    """

    __slots__ = ("_experts", "_num_chosen", "_renormalises", "_router")

    def __init__(
        self, router: Linear, experts: Sequence[GatedMlp], *, num_chosen: int, renormalises: bool
    ) -> None:
        self._router = router
        self._experts = tuple(experts)
        self._num_chosen = num_chosen
        self._renormalises = renormalises

    @property
    def weight_bytes(self) -> int:
        return self._router.weight_bytes + sum(expert.weight_bytes for expert in self._experts)

    def __call__(self, rows: Tensor, residual: Tensor | None) -> Tensor:
        """rows, residual: (R, hidden). Without a residual, what would be added to it."""
        shares, chosen = self._route(rows)
        total = torch.zeros_like(rows) if residual is None else residual.clone()
        order = chosen.view(-1).argsort(stable=True)
        counts = torch.bincount(chosen.view(-1), minlength=len(self._experts)).tolist()
        picks = torch.split(order, counts)
        flat_shares = shares.view(-1, 1)
        for expert, pick in zip(self._experts, picks, strict=True):
            if len(pick) == 0:
                continue
            at = pick // self._num_chosen
            mixed = expert(_at_least(rows[at], ROWS_MIN), None)[: len(pick)]
            total.index_add_(0, at, mixed * flat_shares[pick])
        return total

    def _route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(R, chosen) shares in the rows' dtype, and the experts they belong to."""
        logits = self._router(rows).float()
        if self._renormalises:  # a softmax over the chosen ones is the same as rescaling
            picked, chosen = torch.topk(logits, self._num_chosen, dim=-1)
            shares = torch.softmax(picked, dim=-1)
        else:
            shares, chosen = torch.topk(torch.softmax(logits, dim=-1), self._num_chosen, dim=-1)
        return shares.to(rows.dtype), chosen


def _at_least(rows: Tensor, num_rows: int) -> Tensor:
    """`rows` and as many zeros as make them so many."""
    missing = num_rows - len(rows)
    if missing <= 0:
        return rows
    return torch.cat([rows, rows.new_zeros((missing, rows.shape[1]))])
