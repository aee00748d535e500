"""How the last stage chooses tokens.

Order: penalties, temperature, top-k, top-p, min-p, draw. A row is drawn from its own logits, its
own history and the generator's number for (seed, position), and from nothing else: who shares the
batch, and on which node an earlier part of the request ran, changes nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from node.engine.philox import uniform
from plait.types import SamplingParams, TokenLogprob

_NUCLEUS_PROBE_TOKENS = 512
"""Top-p sorts this many of the likeliest tokens first, and all only where they do not suffice."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token and, where asked for, log-probabilities of the model's own distribution: before
    penalties and temperature."""

    token_id: int
    logprob: float | None
    top_logprobs: tuple[TokenLogprob, ...]


class SequenceSampler:
    """One request's parameters and the history that penalties look at."""

    __slots__ = ("_generated", "_prompt_ids", "params")

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int] = (),
        generated_ids: Sequence[int] = (),
    ) -> None:
        self.params = params
        self._prompt_ids = frozenset(prompt_ids)
        self._generated = Counter(generated_ids)

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the likeliest token is all that is asked for."""
        params = self.params
        return params.is_greedy and not params.has_penalties and params.top_logprobs is None

    def note(self, token_id: int) -> None:
        """Remember a drawn token."""
        if self.params.has_penalties:
            self._generated[token_id] += 1

    def draw(self, logits: Tensor, position: int) -> Drawn:
        """Choose the token at `position` from float32 logits (vocab,), and remember it."""
        params = self.params
        scores = self._penalised(logits) if params.has_penalties else logits
        if params.is_greedy:
            token_id = int(scores.argmax())
        else:
            token_id = _draw(scores, params, uniform(params.seed, position))
        self.note(token_id)
        if params.top_logprobs is None:
            return Drawn(token_id, None, ())
        return _with_logprobs(logits, token_id, params.top_logprobs)

    def _penalised(self, logits: Tensor) -> Tensor:
        """Repetition (Keskar et al., "CTRL", 2019) over prompt and generated ids, then OpenAI's
        frequency (per occurrence) and presence (once) over generated ids."""
        params, device = self.params, logits.device
        scores = logits.clone()
        seen = sorted(self._prompt_ids | self._generated.keys())
        if params.repetition_penalty != 1.0 and seen:
            ids = torch.tensor(seen, device=device)
            old = scores[ids]
            penalty = params.repetition_penalty
            scores[ids] = torch.where(old > 0, old / penalty, old * penalty)
        if self._generated:
            ids = torch.tensor(list(self._generated.keys()), device=device)
            counts = torch.tensor(list(self._generated.values()), device=device)
            scores[ids] -= counts * params.frequency_penalty + params.presence_penalty
        return scores


def draw_rows(
    logits: Tensor, samplers: Sequence[SequenceSampler], positions: Sequence[int]
) -> list[Drawn]:
    """Choose a token for each row of float32 (rows, vocab); greedy rows in one go."""
    greedy: list[int] | None = None
    drawn: list[Drawn] = []
    for row, (sampler, position) in enumerate(zip(samplers, positions, strict=True)):
        if sampler.is_plain_greedy:
            if greedy is None:
                greedy = logits.argmax(dim=-1).tolist()
            drawn.append(Drawn(greedy[row], None, ()))
        else:
            drawn.append(sampler.draw(logits[row], position))
    return drawn


def distribution(scores: Tensor, params: SamplingParams) -> Tensor:
    """What a token is drawn from: float64 (vocab,), zero for tokens that are cut off.

    Holtzman et al. (2019) for top-p; min-p is relative to the likeliest token (Nguyen et al.).
    """
    scaled = scores.double() / params.temperature
    if 0 < params.top_k < len(scaled):
        kept = torch.full_like(scaled, -torch.inf)
        values, ids = scaled.topk(params.top_k)
        scaled = kept.scatter_(0, ids, values)
    weights = torch.softmax(scaled, dim=-1)
    if params.top_p < 1.0:
        weights = _nucleus(weights, params.top_p)
    if params.min_p > 0.0:
        weights = weights.masked_fill(weights < params.min_p * weights.max(), 0.0)
    return weights / weights.sum()


def _nucleus(weights: Tensor, top_p: float) -> Tensor:
    """Keep the fewest likeliest tokens whose weights reach `top_p`, always one."""
    probe = min(_NUCLEUS_PROBE_TOKENS, len(weights))
    values, ids = weights.topk(probe)
    if probe < len(weights) and float(values.sum()) < top_p:
        values, ids = weights.sort(descending=True)
    before = values.cumsum(0) - values
    kept = before < top_p
    kept[0] = True
    return torch.zeros_like(weights).scatter_(0, ids[kept], values[kept])


def _draw(scores: Tensor, params: SamplingParams, number: float) -> int:
    """Inverse of the cumulative distribution in the order of token ids."""
    weights = distribution(scores, params)
    cumulative = weights.cumsum(0)
    index = int(torch.searchsorted(cumulative, number * float(cumulative[-1]), right=True))
    if index < len(weights) and float(weights[index]) > 0.0:
        return index
    return int(weights.nonzero()[-1])  # rounding put the number past the last token


def _with_logprobs(logits: Tensor, token_id: int, num_top: int) -> Drawn:
    logprobs = torch.log_softmax(logits, dim=-1)
    top: tuple[TokenLogprob, ...] = ()
    if num_top > 0:
        values, ids = logprobs.topk(min(num_top, len(logprobs)))
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        top = tuple(TokenLogprob(token, value) for token, value in pairs)
    return Drawn(token_id, float(logprobs[token_id]), top)
