"""Guesses held against what the last stage draws itself.

A row's token is drawn from its own logits, the history in front of it, and the number that belongs
to (seed, position) alone: a guess that equals it is the token that would have been drawn without
any guessing, whatever the sampling parameters, and the row behind it is one that would have run. So
the answer is the same to the last token, not only the same in distribution as by rejection sampling
(Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from node.engine.sampler import Drawn, SequenceSampler, draw_rows
from plait.types import Reason


@dataclass(frozen=True, slots=True)
class Check:
    """Rows of one sequence among logits: `position` is the place of the token that `first_row`
    gives, `drafted_ids` are guesses of it and those behind it."""

    sampler: SequenceSampler
    first_row: int
    position: int
    drafted_ids: tuple[int, ...] = ()


def draw_checked(logits: Tensor, checks: Sequence[Check]) -> list[list[Drawn] | Reason]:
    """What each sequence draws: guesses that were right, and the token behind them, which none was
    or a wrong one. From float32 (rows, vocab).

    Sequences go ahead side by side, a token at a time, since penalties and grammars look at all in
    front: no more is drawn, or noted, than comes out. A grammar that fails at the first token gives
    the reason; at a later one, what came before it counts.
    """
    drawn: list[list[Drawn] | Reason] = [[] for _ in checks]
    going = list(range(len(checks)))
    at = 0
    while going:
        rows = [checks[i].first_row + at for i in going]
        part = logits[: len(rows)] if rows == list(range(len(rows))) else logits[rows]
        samplers = [checks[i].sampler for i in going]
        tokens = draw_rows(part, samplers, [checks[i].position + at for i in going])
        right: list[int] = []
        for i, token in zip(going, tokens, strict=True):
            so_far = drawn[i]
            assert not isinstance(so_far, Reason), "a sequence went on that had failed"
            if isinstance(token, Reason):
                drawn[i] = so_far or token
                continue
            so_far.append(token)
            guesses = checks[i].drafted_ids
            if at < len(guesses) and guesses[at] == token.token_id:
                right.append(i)
        going = right
        at += 1
    return drawn
