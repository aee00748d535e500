"""What tokens are drawn from, for all rows of a step at once, in float64."""

from collections.abc import Sequence

import torch
from torch import Tensor

from plait.types import SamplingParams


_CPU_CELLS_MAX = 1 << 16
"""Cells that are worked on at once on a CPU: 512 KiB in float64 stay in its cache."""


def draw_tokens(
    scores: Tensor, params: Sequence[SamplingParams], numbers: Sequence[float]
) -> list[int]:
    """One token for each row of (rows, vocab): the inverse of the row's cumulative distribution,
    in the order of token ids, at its number in [0, 1)."""
    num_rows, vocab = scores.shape
    step = max(1, _CPU_CELLS_MAX // vocab) if scores.device.type == "cpu" else num_rows
    ids: list[int] = []
    for row in range(0, num_rows, step):
        part = slice(row, row + step)
        ids.extend(_draw_part(scores[part], params[part], numbers[part]))
    return ids


def _draw_part(
    scores: Tensor, params: Sequence[SamplingParams], numbers: Sequence[float]
) -> list[int]:
    weights = distributions(scores, params)
    cumulative = weights.cumsum(1)
    total = cumulative[:, -1:]
    wanted = torch.tensor(numbers, dtype=torch.float64, device=scores.device).unsqueeze(1) * total
    found = torch.searchsorted(cumulative, wanted, right=True)
    inside = found.clamp(max=weights.shape[1] - 1)
    hits = weights.gather(1, inside).gt(0) & (found == inside)
    ids: list[int] = inside.flatten().tolist()
    for row, is_hit in enumerate(hits.flatten().tolist()):
        if not is_hit:  # rounding put the number past the last token
            ids[row] = int(weights[row].nonzero()[-1])
    return ids


def distribution(scores: Tensor, params: SamplingParams) -> Tensor:
    """`distributions` of one row: float64 (vocab,)."""
    return distributions(scores.unsqueeze(0), [params])[0]


def distributions(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """What tokens are drawn from: float64 (rows, vocab), zero for tokens that are cut off.

    Each row comes out as it would alone. Holtzman et al. (2019) for top-p; min-p is relative to
    the likeliest token (Nguyen et al.).
    """
    temperatures = _column([each.temperature for each in params], scores)
    scaled = scores.double().div_(temperatures)
    for top_k in sorted({each.top_k for each in params if 0 < each.top_k < scores.shape[1]}):
        rows = [row for row, each in enumerate(params) if each.top_k == top_k]
        values, ids = scaled[rows].topk(top_k)
        kept = scaled.new_full((len(rows), scaled.shape[1]), -torch.inf)
        scaled[rows] = kept.scatter_(1, ids, values)
    weights = torch.softmax(scaled, dim=-1)
    nuclear = [row for row, each in enumerate(params) if each.top_p < 1.0]
    if nuclear:
        top_ps = _column([params[row].top_p for row in nuclear], weights)
        if len(nuclear) == len(weights):
            _keep_nuclei(weights, top_ps)
        else:
            weights[nuclear] = _keep_nuclei(weights[nuclear], top_ps)
    if any(each.min_p > 0.0 for each in params):
        floor = _column([each.min_p for each in params], weights) * weights.amax(1, keepdim=True)
        weights.masked_fill_(weights < floor, 0.0)
    return weights.div_(weights.sum(1, keepdim=True))


def _keep_nuclei(weights: Tensor, top_p: Tensor) -> Tensor:
    """Keep each row's fewest likeliest tokens whose weights reach `top_p` (rows, 1), always one;
    in place.

    Tokens below (1 - top_p) / vocab weigh less than 1 - top_p together, so the nucleus lies among
    those above; half of it leaves room for rounding. Only these are sorted.
    """
    num_rows, vocab = weights.shape
    row_of, id_of = (weights >= (1.0 - top_p) / (2 * vocab)).nonzero(as_tuple=True)
    counts = torch.bincount(row_of, minlength=num_rows)
    starts = counts.cumsum(0) - counts
    place = torch.arange(len(row_of), device=weights.device) - starts[row_of]
    shape = (num_rows, int(counts.max()))
    values = weights.new_zeros(shape).index_put_((row_of, place), weights[row_of, id_of])
    ids = id_of.new_zeros(shape).index_put_((row_of, place), id_of)
    values, order = values.sort(dim=1, descending=True, stable=True)
    before = values.cumsum(1) - values
    kept = before < top_p
    kept[:, 0] = True
    ids = ids.gather(1, order)
    return weights.zero_().scatter_add_(1, ids, values.masked_fill_(~kept, 0.0))


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device).unsqueeze(1)
