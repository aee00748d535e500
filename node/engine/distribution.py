"""What tokens are drawn from, for all rows of a step at once, in float64."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

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
    weights = weights_of(scores, params)
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
    """What a token is drawn from: float64 (vocab,), whose sum is 1."""
    weights = weights_of(scores.unsqueeze(0), [params])[0]
    return weights.div(weights.sum())


def weights_of(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Weights of tokens: float64 (rows, vocab), zero for those that are cut off. They are not
    divided by their sum: how it is rounded depends on threads and on who shares the batch.

    Each row comes out bit for bit as it would alone. Holtzman et al. (2019) for top-p; min-p is
    relative to the likeliest token (Nguyen et al.).
    """
    temperatures = _column([each.temperature for each in params], scores)
    scaled = scores.double().div_(temperatures)
    for top_k in sorted({each.top_k for each in params if 0 < each.top_k < scores.shape[1]}):
        rows = [row for row, each in enumerate(params) if each.top_k == top_k]
        if len(rows) == len(scaled):
            _keep_top(scaled, top_k)
        else:
            scaled[rows] = _keep_top(scaled[rows], top_k)
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
    return weights


def _keep_nuclei(weights: Tensor, top_p: Tensor) -> Tensor:
    """Keep each row's fewest likeliest tokens whose weights reach `top_p` (rows, 1), always one; of
    equal ones those with the lowest ids. In place.

    Only weights are sorted, not tokens: the last one kept says which tokens are.
    """
    values = _descending(weights, top_p)
    before = values.cumsum(1) - values
    num_kept = (before < top_p).sum(1, keepdim=True).clamp_(min=1)
    least = values.gather(1, num_kept - 1)
    num_least = num_kept - (values > least).sum(1, keepdim=True)
    has_more = bool(((values == least).sum(1, keepdim=True) > num_least).any())
    return _keep(weights, least, num_least, has_more=has_more, empty=0.0)


def _keep_top(scaled: Tensor, top_k: int) -> Tensor:
    """Keep each row's `top_k` largest, of equal ones those with the lowest ids; in place. `topk`
    itself takes any of equal ones."""
    values = scaled.topk(top_k).values
    least = values[:, -1:]
    num_least = top_k - (values > least).sum(1, keepdim=True)
    has_more = bool(((scaled == least).sum(1, keepdim=True) > num_least).any())
    return _keep(scaled, least, num_least, has_more=has_more, empty=-torch.inf)


def _keep(
    cells: Tensor, least: Tensor, num_least: Tensor, *, has_more: bool, empty: float
) -> Tensor:
    """Empty the cells below each row's `least`, and where a row `has_more` that are equal to it,
    those behind its first `num_least`; in place."""
    cells.masked_fill_(cells < least, empty)
    if has_more:
        is_least = cells == least
        cells.masked_fill_(is_least & (is_least.cumsum(1) > num_least), empty)
    return cells


def _descending(weights: Tensor, top_p: Tensor) -> Tensor:
    """(rows, most) each row's weights from the largest down, as far as its nucleus may reach, and
    zeros.

    Tokens below (1 - top_p) / vocab weigh less than 1 - top_p together, so the nucleus lies among
    those above; half of it leaves room for rounding. numpy sorts ten times as fast as torch on a
    CPU.
    """
    if weights.device.type != "cpu":
        return weights.sort(dim=1, descending=True).values
    rows: list[Tensor] = []
    for row, floor in zip(weights, (1.0 - top_p) / (2 * weights.shape[1]), strict=True):
        found = row[row >= floor].numpy()
        found.sort()
        rows.append(torch.from_numpy(found).flip(0))
    return pad_sequence(rows, batch_first=True)


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device).unsqueeze(1)
