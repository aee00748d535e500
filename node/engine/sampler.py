"""How the last stage chooses tokens, all rows of a step together.

Order: penalties, bias, constraint, temperature, top-k, top-p, min-p, draw. A row is drawn from its
own logits, its own history and the generator's number for (seed, position), and from nothing else:
who shares the batch, and on which node an earlier part of the request ran, changes nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from node.engine.distribution import draw_tokens
from node.engine.grammar import Grammar, Masks, mask_words
from node.engine.philox import uniform
from plait.errors import InvalidRequestError
from plait.types import Constraint, Reason, SamplingParams, TokenLogprob

_MASKS = Masks()


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token and, where asked for, log-probabilities of the model's own distribution: before
    penalties, bias, constraint and temperature."""

    token_id: int
    logprob: float | None
    top_logprobs: tuple[TokenLogprob, ...]


class SequenceSampler:
    """One request's parameters and the history that penalties and a constraint look at.

    `grammar` is None until it has been compiled, and where nothing is constrained.
    """

    __slots__ = ("_counts", "_prompt_ids", "generated_ids", "grammar", "params")

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int] = (),
        generated_ids: Sequence[int] = (),
    ) -> None:
        self.params = params
        self.generated_ids = list(generated_ids)
        self.grammar: Grammar | None = None
        self._prompt_ids = frozenset(prompt_ids)
        self._counts = Counter(self.generated_ids)

    @property
    def constraint(self) -> Constraint | None:
        return self.params.constraint

    @property
    def is_ready(self) -> bool:
        """Whether a token can be drawn: nothing has to be compiled first."""
        return self.params.constraint is None or self.grammar is not None

    @property
    def changes_scores(self) -> bool:
        """Whether the row's logits are changed before anything is chosen."""
        params = self.params
        return params.has_penalties or bool(params.logit_bias)

    def note(self, token_id: int) -> None:
        """Remember a drawn token. Raises InvalidRequestError(reason="grammar_failed")."""
        if self.params.needs_history:
            self.generated_ids.append(token_id)
            self._counts[token_id] += 1
        if self.grammar is not None:
            self.grammar.accept(token_id)

    def draw(self, logits: Tensor, position: int) -> Drawn:
        """Choose the token at `position` from float32 logits (vocab,), and remember it."""
        (drawn,) = draw_rows(logits.unsqueeze(0), [self], [position])
        assert isinstance(drawn, Drawn), drawn
        return drawn

    def change(self, scores: Tensor) -> None:
        """Penalties and bias on (vocab,), in place.

        Repetition (Keskar et al., "CTRL", 2019) over prompt and generated ids, then OpenAI's
        frequency (per occurrence) and presence (once) over generated ids, then its logit bias.
        """
        params, device = self.params, scores.device
        if params.repetition_penalty != 1.0:
            seen = sorted(self._prompt_ids | self._counts.keys())
            ids = torch.tensor(seen, dtype=torch.int64, device=device)
            old = scores[ids]
            penalty = params.repetition_penalty
            scores[ids] = torch.where(old > 0, old / penalty, old * penalty)
        if self._counts and (params.frequency_penalty or params.presence_penalty):
            ids = torch.tensor(list(self._counts.keys()), device=device)
            counts = torch.tensor(list(self._counts.values()), device=device)
            scores[ids] -= counts * params.frequency_penalty + params.presence_penalty
        if params.logit_bias:
            ids = torch.tensor([token_id for token_id, _ in params.logit_bias], device=device)
            scores[ids] += torch.tensor([bias for _, bias in params.logit_bias], device=device)


def draw_rows(
    logits: Tensor, samplers: Sequence[SequenceSampler], positions: Sequence[int]
) -> list[Drawn | Reason]:
    """Choose a token for each row of float32 (rows, vocab), and remember it. A row whose grammar
    fails gives the reason; the others do not notice."""
    scores, failed = _changed(logits, samplers)
    ids = _choose(scores, samplers, positions)
    drawn: list[Drawn | Reason] = []
    scored = _with_logprobs(logits, samplers, ids)
    for row, (sampler, token_id) in enumerate(zip(samplers, ids, strict=True)):
        if row in failed:
            drawn.append(failed[row])
            continue
        try:
            sampler.note(token_id)
        except InvalidRequestError as error:
            drawn.append(Reason(code=error.code, message=error.message))
            continue
        drawn.append(scored.get(row) or Drawn(token_id, None, ()))
    return drawn


def _changed(
    logits: Tensor, samplers: Sequence[SequenceSampler]
) -> tuple[Tensor, dict[int, Reason]]:
    """Scores after penalties, bias and constraints, and the rows whose grammar failed. `logits`
    themselves stay: log-probabilities are theirs."""
    changed = [row for row, sampler in enumerate(samplers) if sampler.changes_scores]
    grammars = [
        (row, sampler.grammar)
        for row, sampler in enumerate(samplers)
        if sampler.params.constraint is not None
    ]
    failed: dict[int, Reason] = {}
    if not changed and not grammars:
        return logits, failed
    scores = logits.clone()
    for row in changed:
        samplers[row].change(scores[row])
    if not grammars:
        return scores, failed
    bits = torch.empty((len(grammars), mask_words(logits.shape[1])), dtype=torch.int32)
    for (row, grammar), mask in zip(grammars, bits, strict=True):
        try:
            assert grammar is not None, "a token was asked of a request without its grammar"
            grammar.fill(mask)
        except InvalidRequestError as error:
            failed[row] = Reason(code=error.code, message=error.message)
            mask.fill_(-1)
    _MASKS.forbid(scores, [row for row, _ in grammars], bits)
    return scores, failed


def _choose(
    scores: Tensor, samplers: Sequence[SequenceSampler], positions: Sequence[int]
) -> list[int]:
    """A token for each row: greedy rows in one go, and all others in another."""
    drawing = [row for row, sampler in enumerate(samplers) if not sampler.params.is_greedy]
    if not drawing:
        greedy: list[int] = scores.argmax(dim=-1).tolist()
        return greedy
    params = [samplers[row].params for row in drawing]
    numbers = [uniform(samplers[row].params.seed, positions[row]) for row in drawing]
    if len(drawing) == len(samplers):
        return draw_tokens(scores, params, numbers)
    ids = [0] * len(samplers)
    for row, token_id in zip(drawing, draw_tokens(scores[drawing], params, numbers), strict=True):
        ids[row] = token_id
    others = [row for row, sampler in enumerate(samplers) if sampler.params.is_greedy]
    for row, token_id in zip(others, scores[others].argmax(dim=-1).tolist(), strict=True):
        ids[row] = token_id
    return ids


def _with_logprobs(
    logits: Tensor, samplers: Sequence[SequenceSampler], ids: Sequence[int]
) -> dict[int, Drawn]:
    """By row, what was drawn where log-probabilities were asked for."""
    wanted = {
        row: sampler.params.top_logprobs
        for row, sampler in enumerate(samplers)
        if sampler.params.top_logprobs is not None
    }
    if not wanted:
        return {}
    logprobs = torch.log_softmax(logits[list(wanted)], dim=-1)
    chosen = torch.tensor([ids[row] for row in wanted], device=logits.device)
    values: list[float] = logprobs.gather(1, chosen.unsqueeze(1)).flatten().tolist()
    num_top = min(max(wanted.values()), logits.shape[1])
    tops: list[list[tuple[int, float]]] = [[] for _ in wanted]
    if num_top:
        best, best_ids = logprobs.topk(num_top)
        tops = [
            list(zip(row_ids, row, strict=True))
            for row_ids, row in zip(best_ids.tolist(), best.tolist(), strict=True)
        ]
    return {
        row: Drawn(ids[row], value, tuple(TokenLogprob(*pair) for pair in top[:num]))
        for (row, num), value, top in zip(wanted.items(), values, tops, strict=True)
    }
