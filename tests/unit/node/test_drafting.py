"""Whether a draft model is asked, and what its guesses cost and bring, in a story's own time."""

import random
from collections.abc import Callable, Sequence

import pytest

from node.core.drafting import CATCH_UP_TOKENS, SHARING_MAX, DraftAsk, Drafting, DraftRecord
from node.core.speculation import AdaptiveLookup
from node.core.trip_times import TripTimes
from plait.types import DRAFTS_MAX

BASE_MS, ROW_MS = 80.0, 2.0


def text(count: int, seed: int = 1) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(50_000) for _ in range(count)]


class Request:
    """Text to come, and a draft model that is right as often as `knows` says."""

    def __init__(
        self,
        answer: Sequence[int],
        knows: Callable[[int], bool],
        *,
        step_ms: float = 10.0,
        prompt: Sequence[int] = tuple(text(100, 2)),
        record: DraftRecord | None = None,
        num_sharing: int = 1,
    ) -> None:
        self.record = record if record is not None else DraftRecord()
        lookup = AdaptiveLookup(prompt, (), TripTimes())
        self.drafting: Drafting = self.record.begin(prompt, lookup)
        self.known = [*prompt]
        self.answer = list(answer)
        self.knows, self.step_ms, self.num_sharing = knows, step_ms, num_sharing
        self.now_ms = 0.0
        self.asked: list[DraftAsk] = []
        self.sent: list[int] = []
        self.told: list[int] = []
        self.on_the_way: tuple[float, tuple[int, ...]] | None = None

    def run(self) -> float:
        """Time without any guesses as a multiple of the time with them."""
        at = self._trip(self.answer[:1])
        while at < len(self.answer):
            at += self._trip(self.answer[at : at + self._right(at) + 1])
        return BASE_MS * (len(self.answer) - 1) / self.now_ms

    def _right(self, at: int) -> int:
        right = 0
        while right < len(self.guesses) and self.guesses[right] == self.answer[at + right]:
            right += 1
        return right

    def _trip(self, came: list[int]) -> int:
        """Tokens come, the model may be asked, and the next row goes on its way."""
        self._hear()
        drafting = self.drafting
        drafting.drew(came, round(self.now_ms))
        self.known += came
        most = max(0, min(DRAFTS_MAX, len(self.answer) - self._num_drawn - 1))
        ask = drafting.ask(most, self.num_sharing, round(self.now_ms))
        if ask is not None:
            self.asked.append(ask)
            self.told += ask.token_ids
            assert self.told == self.known and ask.start + len(ask.token_ids) == len(self.known)
            guesses = self._drafted(ask.count)
            took_ms = self.step_ms * ask.count
            if ask.is_waited:
                self.now_ms += took_ms
                drafting.heard(guesses, self.step_ms, round(self.now_ms))
            else:
                self.on_the_way = (self.now_ms + took_ms, guesses)
        self.guesses = drafting.propose(most, self.num_sharing, round(self.now_ms))
        self.sent.append(len(self.guesses))
        if self._num_drawn < len(self.answer):
            self.now_ms += BASE_MS + ROW_MS * len(self.guesses)
        return len(came)

    @property
    def _num_drawn(self) -> int:
        return len(self.known) - 100

    def _hear(self) -> None:
        if self.on_the_way is not None and self.on_the_way[0] <= self.now_ms:
            self.drafting.heard(self.on_the_way[1], self.step_ms, round(self.now_ms))
            self.on_the_way = None

    def _drafted(self, count: int) -> tuple[int, ...]:
        at = self._num_drawn
        right = [*self.answer[at : at + count], *[7] * count][:count]
        return tuple(token if self.knows(at + n) else token + 1 for n, token in enumerate(right))


def waited(request: Request) -> int:
    return sum(ask.is_waited for ask in request.asked)


def test_a_model_that_is_always_right_brings_new_text_several_tokens_a_trip() -> None:
    request = Request(text(300), lambda _: True)
    assert request.run() > 3.0
    assert not any(ask.is_waited for ask in request.asked[:1]), "the prompt is read meanwhile"


def test_a_model_that_is_right_three_times_of_four_still_pays() -> None:
    source = random.Random(3)
    known = [source.random() < 0.75 for _ in range(700)]
    assert Request(text(400), lambda at: known[at]).run() > 1.3


@pytest.mark.parametrize("step_ms", [1.0, 10.0, 60.0])
def test_a_model_that_is_never_right_costs_next_to_nothing(step_ms: float) -> None:
    """And the more requests there are, the less: they begin with what is known of it."""
    request = Request(text(400), lambda _: False, step_ms=step_ms)
    assert request.run() > 0.95
    assert sum(request.sent[100:]) == 0 and waited(request) < 30
    again = Request(text(400, 5), lambda _: False, step_ms=step_ms, record=request.record)
    assert again.run() > 0.99 and waited(again) <= 1
    probes = [ask.count for ask in again.asked]
    assert len(probes) < 8 and max(probes) <= 4


def test_a_model_that_takes_longer_than_a_trip_is_not_waited_for() -> None:
    request = Request(text(200), lambda _: True, step_ms=100.0)
    assert request.run() > 0.98 and waited(request) == 0


def test_a_model_that_becomes_right_is_found_out() -> None:
    request = Request(text(1_500), lambda at: at > 500)
    request.run()
    assert sum(request.sent[-20:]) > 60


def test_what_repeats_itself_is_looked_up_and_not_drafted() -> None:
    prompt = text(100, 2)
    request = Request([*prompt[:99]], lambda _: True, prompt=prompt)
    assert request.run() > 3.0
    assert waited(request) <= 3


def test_with_many_requests_it_drafts_for_none() -> None:
    request = Request(text(100), lambda _: True, num_sharing=SHARING_MAX + 1)
    request.run()
    assert request.asked == []


def test_what_it_has_not_read_for_long_is_read_while_rows_travel() -> None:
    """Looked up guesses pay for a while, then they do not any more."""
    prompt = text(100, 2)
    request = Request([*prompt[:90], *text(100, 4)], lambda _: True, prompt=prompt)
    assert request.run() > 2.5
    late = [ask for ask in request.asked if ask.start > 0 and len(ask.token_ids) > CATCH_UP_TOKENS]
    assert late and not any(ask.is_waited for ask in late)


def test_a_model_without_room_is_not_asked_again() -> None:
    request = Request(text(3), lambda _: True)
    drafting = request.drafting
    drafting.drew([1], 0)
    assert drafting.ask(5, 1, 0) is not None
    assert drafting.ask(5, 1, 0) is None, "it is at it"
    drafting.heard((), 0.0, 9)
    drafting.drew([2], 100)
    assert drafting.ask(5, 1, 100) is None
    assert drafting.propose(5, 1, 100) == ()


def test_guesses_that_come_late_are_held_against_what_came_meanwhile() -> None:
    drafting = Request(text(3), lambda _: True).drafting
    trips = drafting._lookup.trips
    for _ in range(3):
        trips.add(0, BASE_MS)
    drafting.drew([1], 0)
    assert drafting.ask(5, 1, 0) is not None
    drafting.propose(5, 1, 0)
    drafting.drew([2], 80)
    drafting.heard((2, 3, 4, 5), 1.0, 90)
    assert drafting.propose(5, 1, 90) == (3, 4, 5)
    drafting.drew([9], 170)
    assert drafting.propose(5, 1, 170) == ()
