"""Guesses of a small model on the first stage, beside those that are looked up.

A looked up guess costs nothing to make, one of a model some milliseconds: both are asked for what
they promise, and the better one pays. What the model guesses is held against the next tokens
whether it was sent or not. A row waits for guesses only where they are expected to pay; the prompt
is read, and the model's worth is found out, while rows are on their way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from node.core.speculation import AdaptiveLookup, Rates, best_count

SHARING_MAX: Final = 8
"""Requests on this node up to which it drafts: with more, steps are full without guesses."""

CATCH_UP_TOKENS: Final = 32
"""A row waits while the draft model reads so many tokens that it has not seen; more are read while
rows travel."""

PROBE_GUESSES: Final = 4
PROBE_TOKENS_MIN: Final = 32
PROBE_TOKENS_MAX: Final = 512
"""So many tokens apart it is found out whether drafting pays by now, ever more rarely."""

_KEPT: Final = 0.95
_PRIOR: Final = (0.6, 0.75)


@dataclass(frozen=True, slots=True)
class DraftAsk:
    """Tokens of a sequence from `start` on that the draft model has not seen, and how many guesses
    of those behind them are wanted."""

    start: int
    token_ids: tuple[int, ...]
    count: int
    is_waited: bool


class DraftRecord:
    """What a node's draft model was worth so far: requests begin with it."""

    def __init__(self) -> None:
        self.rates = Rates(*_PRIOR)
        self._ms = self._num_guesses = 0.0

    def took(self, num_guesses: int, guessing_ms: float) -> None:
        """Guesses came."""
        self._ms = _KEPT * self._ms + guessing_ms
        self._num_guesses = _KEPT * self._num_guesses + num_guesses

    @property
    def guess_ms(self) -> float | None:
        """What a guess takes; None while none has come."""
        return self._ms / self._num_guesses if self._num_guesses else None

    def begin(self, prompt: Sequence[int], lookup: AdaptiveLookup) -> "Drafting":
        """Guess a request's tokens."""
        return Drafting(prompt, lookup, self)


class Drafting:
    """A `Proposer` of two sources. `ask` first: it says what the draft model is to do."""

    def __init__(self, prompt: Sequence[int], lookup: AdaptiveLookup, record: DraftRecord) -> None:
        self._lookup = lookup
        self._record = record
        self._rates = Rates(record.rates.first.share, record.rates.later.share)
        self._start = 0
        self._untold = list(prompt)
        self._drafted: tuple[int, ...] = ()
        self._num_checked = 0
        self._asked_ms: int | None = None
        self._is_waited = False
        self._is_off = False
        self._probe_in = 0
        self._probe_gap = PROBE_TOKENS_MIN
        self.num_by_model = 0

    def drew(self, token_ids: Sequence[int], now_ms: int) -> None:
        self._lookup.drew(token_ids, now_ms)
        self._untold += token_ids
        self._probe_in -= len(token_ids)
        self._check()

    def ask(self, most: int, num_sharing: int, now_ms: int) -> DraftAsk | None:
        """What the draft model is to do now. Where it `is_waited` for, the row goes when its answer
        was `heard`."""
        is_busy = self._asked_ms is not None
        if self._is_off or is_busy or most <= 0 or num_sharing > SHARING_MAX:
            return None
        if self._pays(most, num_sharing):
            is_warm = len(self._untold) <= CATCH_UP_TOKENS
            self._probe_gap = PROBE_TOKENS_MIN
            count = self._count(most, num_sharing)[0]
            return self._tell(count, now_ms, is_waited=is_warm)
        if self._probe_in > 0:
            return None
        self._probe_in = self._probe_gap
        self._probe_gap = min(2 * self._probe_gap, PROBE_TOKENS_MAX)
        return self._tell(min(most, PROBE_GUESSES), now_ms, is_waited=False)

    def heard(self, token_ids: Sequence[int], step_ms: float, now_ms: int) -> None:
        """The draft model's answer; a guess took it `step_ms`. None: it has no room for the
        request, or is gone."""
        asked_ms, self._asked_ms = self._asked_ms, None
        if asked_ms is None or not token_ids:
            self._is_off = True
            return
        took_ms = now_ms - asked_ms if self._is_waited else step_ms * len(token_ids)
        self._record.took(len(token_ids), took_ms)
        self._drafted = self._lookup.before_a_stop(tuple(token_ids))
        self._check()

    def waited_ms(self, now_ms: int) -> int:
        """How long the draft model has had for its answer; 0 where none is due."""
        return 0 if self._asked_ms is None else now_ms - self._asked_ms

    def propose(self, most: int, num_sharing: int, now_ms: int) -> tuple[int, ...]:
        ready = self._drafted[len(self._untold) :]
        trips = self._lookup.trips
        count, gain = best_count(min(most, len(ready)), self._rates, trips, num_sharing)
        num_found, found_gain = self._lookup.offer(most, num_sharing)
        is_by_model = gain > found_gain
        self.num_by_model = count if is_by_model else 0
        guesses = ready[:count] if is_by_model else self._lookup.found[:num_found]
        return self._lookup.send(guesses, now_ms)

    def _pays(self, most: int, num_sharing: int) -> bool:
        count, gain = self._count(most, num_sharing)
        return count > 0 and gain > self._lookup.offer(most, num_sharing)[1]

    def _count(self, most: int, num_sharing: int) -> tuple[int, float]:
        guess_ms = self._record.guess_ms
        if guess_ms is None:
            return 0, 1.0
        trips = self._lookup.trips
        return best_count(most, self._rates, trips, num_sharing, guess_ms=guess_ms)

    def _tell(self, count: int, now_ms: int, *, is_waited: bool) -> DraftAsk:
        ask = DraftAsk(self._start, tuple(self._untold), count, is_waited)
        self._start += len(self._untold)
        self._untold = []
        self._drafted, self._num_checked = (), 0
        self._asked_ms, self._is_waited = now_ms, is_waited
        return ask

    def _check(self) -> None:
        """Hold guesses against what has come; nothing behind a wrong one counts."""
        begin, end = self._num_checked, min(len(self._drafted), len(self._untold))
        if begin >= end:
            return
        guesses, came = self._drafted[begin:end], self._untold[begin:end]
        self._num_checked += self._rates.hold(guesses, came, behind=begin)
        self._record.rates.hold(guesses, came, behind=begin)
        if self._num_checked < end:
            self._drafted = self._drafted[: self._num_checked]
