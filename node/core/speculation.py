"""How many guesses go along with a token: as many as make a trip worth the most.

A trip with k guesses takes base + k x row (`node.core.trip_times`) and brings 1 + a + a b + ...
tokens, where a is how often a first guess was right, and b how often one was whose forerunner was
right. Both are counted for each length of what was found, whether guesses were sent or not: what
was not sent is held against the next token too. So text that repeats nothing costs nothing.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from node.core.lookup import Lookup
from node.core.messages import StageOpen
from node.core.trip_times import ChainTrips, TripTimes
from plait.types import DRAFTS_MAX

GAIN_MIN: Final = 1.05
"""Guesses are sent where they promise at least so many times the tokens of a trip without."""

_KEPT: Final = 0.94
_PRIOR_WEIGHT: Final = 2.0
_PRIORS: Final = ((0.3, 0.7), (0.5, 0.8), (0.7, 0.9))
"""(first, later ones) for each length that `Lookup` knows, while nothing is known."""

_CHARS: Final = 0x110000
"""Token ids that fit into a text."""


class Proposer(Protocol):
    """Guesses tokens of one request, on its first stage."""

    def drew(self, token_ids: Sequence[int], now_ms: int) -> None:
        """These came next: guesses that were right, and the token behind them."""
        ...

    def propose(self, most: int, num_sharing: int, now_ms: int) -> tuple[int, ...]:
        """At most so many guesses that go along now; `num_sharing` requests share the nodes."""
        ...


class Proposers(Protocol):
    """Makes a proposer for each request that begins here."""

    def begin(self, opened: StageOpen, prompt: Sequence[int]) -> Proposer | None: ...


class PromptLookups:
    """Guesses from what the request has said so far."""

    def __init__(self) -> None:
        self._trips = ChainTrips()

    def begin(self, opened: StageOpen, prompt: Sequence[int]) -> "AdaptiveLookup | None":
        """None where ids are too large to be looked up."""
        if max(prompt) >= _CHARS:
            return None
        chain = tuple(stage.node_id for stage in opened.stages)
        return AdaptiveLookup(prompt, opened.stop_token_ids, self._trips.of(chain))


class AdaptiveLookup:
    """Looks back, and sends of what it finds what pays."""

    def __init__(
        self, prompt: Sequence[int], stop_token_ids: Sequence[int], trips: TripTimes
    ) -> None:
        self._lookup = Lookup(prompt)
        self._stops = frozenset(stop_token_ids)
        self._trips = trips
        self._rates = [Rates(first, later) for first, later in _PRIORS]
        self._found: tuple[int, ...] = ()
        self._level = 0
        self._num_sent = 0
        self._sent_ms: int | None = None

    @property
    def found(self) -> tuple[int, ...]:
        """What was found last."""
        return self._found

    @property
    def trips(self) -> TripTimes:
        """Of the request's chain."""
        return self._trips

    def drew(self, token_ids: Sequence[int], now_ms: int) -> None:
        self._rates[self._level].hold(self._found, token_ids)
        if self._sent_ms is not None:
            self._trips.add(self._num_sent, now_ms - self._sent_ms)
        self._lookup.push(token_ids)

    def propose(self, most: int, num_sharing: int, now_ms: int) -> tuple[int, ...]:
        count, _ = self.offer(most, num_sharing)
        return self.send(self._found[:count], now_ms)

    def offer(self, most: int, num_sharing: int) -> tuple[int, float]:
        """How many of what is found pay, and the gain of these; (0, 1.0) for none. What is found is
        held against the next tokens, whatever is sent."""
        found, self._level = self._lookup.find(DRAFTS_MAX)
        self._found = self.before_a_stop(found)
        return best_count(
            min(most, len(self._found)), self._rates[self._level], self._trips, num_sharing
        )

    def send(self, guesses: tuple[int, ...], now_ms: int) -> tuple[int, ...]:
        """These go along now: the trip begins."""
        self._num_sent = len(guesses)
        self._sent_ms = now_ms
        return guesses

    def before_a_stop(self, found: tuple[int, ...]) -> tuple[int, ...]:
        """Nothing comes behind a token that ends the answer, and it needs no guess itself."""
        for at, token_id in enumerate(found):
            if token_id in self._stops:
                return found[:at]
        return found


class Rates:
    """How often a first guess was right of late, and one whose forerunner was."""

    __slots__ = ("first", "later")

    def __init__(self, first: float, later: float) -> None:
        self.first = _Rate(first)
        self.later = _Rate(later)

    def hold(self, guesses: Sequence[int], token_ids: Sequence[int], *, behind: int = 0) -> int:
        """Guesses held against what came, up to the first wrong one; `behind` right ones came
        before them. Returns how many were right."""
        num_right = 0
        for at, (guess, token_id) in enumerate(zip(guesses, token_ids, strict=False), behind):
            (self.later if at else self.first).note(guess == token_id)
            if guess != token_id:
                break
            num_right += 1
        return num_right


class _Rate:
    """How often something was so of late."""

    __slots__ = ("_hits", "_prior", "_trials")

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._hits = self._trials = 0.0

    def note(self, is_hit: bool) -> None:
        self._hits = _KEPT * self._hits + is_hit
        self._trials = _KEPT * self._trials + 1.0

    @property
    def share(self) -> float:
        return (self._hits + _PRIOR_WEIGHT * self._prior) / (self._trials + _PRIOR_WEIGHT)


def best_count(
    most: int, rates: Rates, trips: TripTimes, num_sharing: int, *, guess_ms: float = 0.0
) -> tuple[int, float]:
    """How many guesses make a trip worth the most, and its tokens a time as a multiple of those of
    a trip without; (0, 1.0) where none pay. Each delays all who share the nodes, so it counts for
    all of them; to make it takes `guess_ms`."""
    if trips.needs_base:
        return 0, 1.0
    base_ms, row_ms = trips.line()
    cost = (row_ms * max(1, num_sharing) + guess_ms) / base_ms
    best, best_gain = 0, GAIN_MIN
    num_tokens, chance = 1.0, rates.first.share
    for count in range(1, most + 1):
        num_tokens += chance
        chance *= rates.later.share
        gain = num_tokens / (1.0 + cost * count)
        if gain > best_gain:
            best, best_gain = count, gain
    return best, best_gain if best else 1.0


def agreed(opened: StageOpen, limit: int) -> int:
    """Guesses that a frame of this request may hold, as far as the chain has been asked."""
    asked = opened.drafts_max
    if asked is None:
        asked = limit if opened.stage_index == 0 else 0
    return min(asked, limit, DRAFTS_MAX)
