"""What is guessed, and how much of it is sent."""

import random

import pytest

from node.core.lookup import LOOKBACK_TOKENS, Lookup
from node.core.speculation import AdaptiveLookup, PromptLookups, agreed
from node.core.trip_times import ROW_SHARE, ChainTrips, TripTimes
from plait.types import DRAFTS_MAX, NodeId
from tests.unit.node.story import opened


def naive_find(ids: list[int], most: int) -> tuple[tuple[int, ...], int]:
    """Place by place, from the end."""
    found: tuple[tuple[int, ...], int] = ((), 0)
    for level, length in enumerate((2, 4, 8)):
        ends = [at for at in range(length, len(ids)) if ids[at - length : at] == ids[-length:]]
        if len(ids) <= length or not ends:
            break
        source = ends[-1]
        found = (
            tuple(ids[source + n % (len(ids) - source)] for n in range(most)),
            level,
        )
    return found


@pytest.mark.parametrize("seed", range(30))
def test_the_lookup_is_the_naive_one(seed: int) -> None:
    source = random.Random(seed)
    ids = [source.randrange(2 + seed % 5) * 60_000 for _ in range(60)]
    lookup = Lookup(ids[:20])
    for end in range(20, 60):
        assert lookup.find(6) == naive_find(ids[:end], 6)
        lookup.push(ids[end : end + 1])


def test_what_runs_into_the_end_repeats_itself() -> None:
    assert Lookup([9, 1, 2, 3, 1, 2, 3, 1, 2]).find(7)[0] == (3, 1, 2, 3, 1, 2, 3)
    assert Lookup([1, 2, 3]).find(4) == ((), 0)
    assert Lookup([1, 2, 1, 2]).find(0) == ((), 0)


def test_what_lies_too_far_back_is_not_found() -> None:
    far = [7, 8, 9, *range(1000, 1000 + LOOKBACK_TOKENS), 7, 8]
    assert Lookup(far).find(3) == ((), 0)
    near = [*range(1000, 1000 + LOOKBACK_TOKENS - 10), 1000, 1001]
    assert Lookup(near).find(1)[0] == (1002,)


def test_a_line_goes_through_the_trips() -> None:
    trips = TripTimes()
    assert trips.line() == (1.0, ROW_SHARE)
    for turn in range(200):
        trips.add(turn % 5, 80.0 + 4.0 * (turn % 5))
    base_ms, row_ms = trips.line()
    assert abs(base_ms - 80) < 1 and abs(row_ms - 4) < 0.5


def test_a_pause_is_no_trip() -> None:
    trips = TripTimes()
    for _ in range(50):
        trips.add(0, 80.0)
    trips.add(0, 60_000.0)
    assert trips.line()[0] < 100


def test_a_chain_that_changes_is_learned_anew() -> None:
    trips = TripTimes()
    for turn in range(400):
        trips.add(turn % 3, (80.0 if turn < 200 else 20.0) + turn % 3)
    assert abs(trips.line()[0] - 20) < 2


def test_chains_are_bounded_and_the_oldest_is_forgotten() -> None:
    chains = ChainTrips()
    first = chains.of((NodeId("a"),))
    assert chains.of((NodeId("a"),)) is first
    for number in range(64):
        chains.of((NodeId(f"n{number}"),))
    assert chains.of((NodeId("a"),)) is not first


def known_trips() -> TripTimes:
    trips = TripTimes()
    for _ in range(3):
        trips.add(0, 80.0)
    return trips


class Model:
    """Text to come, and the time that trips with guesses take."""

    def __init__(self, prompt: list[int], text: list[int], *, row_ms: float) -> None:
        self.proposer = AdaptiveLookup(prompt, (), TripTimes())
        self.text = text
        self.row_ms = row_ms
        self.now_ms = 0.0
        self.sent: list[int] = []

    def run(self, *, num_sharing: int = 1) -> float:
        """Time without guesses as a multiple of the time with them."""
        at = 0
        self.proposer.drew(self.text[:1], 0)
        while at < len(self.text) - 1:
            now_ms = round(self.now_ms)
            most = min(DRAFTS_MAX, len(self.text) - at - 2)
            guesses = self.proposer.propose(most, num_sharing, now_ms)
            self.now_ms += 80.0 + self.row_ms * len(guesses)
            self.sent.append(len(guesses))
            right = 0
            while right < len(guesses) and guesses[right] == self.text[at + 1 + right]:
                right += 1
            came = self.text[at + 1 : at + 2 + right]
            self.proposer.drew(came, round(self.now_ms))
            at += len(came)
        return 80.0 * (len(self.text) - 1) / self.now_ms


def test_text_that_repeats_itself_comes_several_tokens_a_trip() -> None:
    prompt = list(range(100, 300))
    assert Model(prompt, prompt[20:160], row_ms=4.0).run() > 4


@pytest.mark.parametrize("seed", range(5))
def test_text_that_repeats_nothing_takes_no_longer(seed: int) -> None:
    """Ends are found all the time, and what followed them tells nothing."""
    source = random.Random(seed)
    ids = [source.randrange(12) for _ in range(600)]
    assert Model(ids[:200], ids[200:], row_ms=8.0).run() > 0.98


def test_wrong_guesses_are_no_longer_sent_and_right_ones_are_again() -> None:
    source = random.Random(1)
    noise = [source.randrange(9) for _ in range(300)]
    copied = list(range(50, 120))
    model = Model([*noise[:100], *copied], [*noise[100:], *copied, *copied], row_ms=8.0)
    model.run()
    assert sum(model.sent[150:190]) <= 3
    assert sum(model.sent[-12:]) > 60


def test_rows_that_cost_much_are_not_sent_and_free_ones_all() -> None:
    prompt = list(range(100, 300))
    dear = Model(prompt, prompt[20:100], row_ms=200.0)
    assert dear.run() > 0.6, "one try"
    free = Model(prompt, prompt[20:160], row_ms=0.0)
    free.run()
    assert sum(dear.sent[5:]) <= 5 and max(free.sent) == DRAFTS_MAX


def test_who_shares_the_nodes_is_thought_of() -> None:
    alone = Model(list(range(100, 200)), list(range(110, 190)), row_ms=8.0)
    shared = Model(list(range(100, 200)), list(range(110, 190)), row_ms=8.0)
    alone.run()
    shared.run(num_sharing=12)
    assert sum(shared.sent) < sum(alone.sent) // 2


def test_nothing_is_guessed_from_a_stop_on() -> None:
    for stop, guesses in ((4, ()), (5, (4,)), (7, (4, 5, 6))):
        proposer = AdaptiveLookup([1, 2, 3, 4, 5, 6, 7, 8, 1, 2], (stop,), known_trips())
        proposer.drew([3], 0)
        assert proposer.propose(9, 1, 0)[:3] == guesses


def test_never_more_than_may_be_sent() -> None:
    proposer = AdaptiveLookup([*range(50)] * 2, (), TripTimes())
    proposer.drew([0], 0)
    for now_ms in (0, 80, 160):
        assert proposer.propose(9, 1, now_ms) == (), "what a trip takes is not known yet"
        proposer.drew([1 + now_ms // 80], now_ms + 80)
    assert proposer.propose(2, 1, 240) == (4, 5)
    assert proposer.propose(0, 1, 240) == ()


def test_ids_beyond_characters_are_not_looked_up() -> None:
    assert PromptLookups().begin(opened(0), [0x110000]) is None
    assert PromptLookups().begin(opened(0), [0x10FFFF, 0xD800]) is not None


def test_the_first_stage_decides_and_the_others_agree() -> None:
    assert agreed(opened(0), 8) == 8 and agreed(opened(1), 8) == 0
    assert agreed(opened(0, drafts_max=3), 8) == 3 and agreed(opened(1, drafts_max=3), 2) == 2
    assert agreed(opened(0, drafts_max=99), 99) == DRAFTS_MAX
