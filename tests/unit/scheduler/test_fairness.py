"""Who is next."""

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.selection.fairness import (
    KEYS_MAX,
    WEIGHT_MIN,
    SloClass,
    VirtualCounters,
    Waiting,
    cost_tokens,
    fair_order,
)


def one(
    key: str,
    *,
    slo: SloClass = SloClass.INTERACTIVE,
    waited_ms: int = 0,
    tokens: int = 100,
    is_resumed: bool = False,
) -> Waiting:
    return Waiting(key_id=key, slo=slo, waited_ms=waited_ms, tokens=tokens, is_resumed=is_resumed)


def order(*waiting: Waiting, counters: VirtualCounters | None = None) -> list[int]:
    known = counters if counters is not None else VirtualCounters()
    return fair_order(waiting, known, ageing_ms=10_000)


def test_one_key_is_served_in_order_of_arrival() -> None:
    assert order(one("a"), one("a", tokens=9_000), one("a")) == [0, 1, 2]


def test_a_key_with_many_requests_does_not_hold_up_another() -> None:
    assert order(one("a"), one("a"), one("a"), one("b")) == [0, 3, 1, 2]


def test_long_requests_cost_their_key_more_turns() -> None:
    waiting = [one("a", tokens=1_000), one("a"), *(one("b") for _ in range(4))]
    assert order(*waiting) == [0, 2, 3, 4, 5, 1]


def test_who_has_paid_more_waits_longer() -> None:
    counters = VirtualCounters()
    counters.charge("a", cost_tokens(100, 50))
    assert counters.paid("a") == 200
    assert order(one("a"), one("b"), counters=counters) == [1, 0]


def test_batch_work_waits_behind_people_until_it_has_aged() -> None:
    batch = one("a", slo=SloClass.BATCH, waited_ms=9_999)
    assert order(batch, one("b")) == [1, 0]
    aged = one("a", slo=SloClass.BATCH, waited_ms=10_000)
    assert order(aged, one("b")) == [0, 1]


def test_whoever_was_served_already_goes_first() -> None:
    counters = VirtualCounters()
    counters.charge("a", 9e9)
    assert order(one("b"), one("a", is_resumed=True), counters=counters) == [1, 0]


def test_an_idle_key_saves_no_turns() -> None:
    counters = VirtualCounters()
    counters.charge("a", 5_000)
    counters.charge("b", 7_000)
    counters.lift("c", ["a", "b"])
    assert counters.paid("c") == 5_000
    counters.lift("b", ["a"])
    assert counters.paid("b") == 7_000


def test_counters_are_bounded() -> None:
    counters = VirtualCounters()
    for i in range(KEYS_MAX + 50):
        counters.charge(f"k{i}", 1.0 + i)
    assert counters.paid("k0") == 0.0 and counters.paid(f"k{KEYS_MAX + 49}") > 0.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(1, 500)), max_size=30))
def test_everybody_is_in_the_order_once_and_keys_keep_theirs(
    drawn: list[tuple[str, bool, int]],
) -> None:
    waiting = [
        one(key, slo=SloClass.BATCH if is_batch else SloClass.INTERACTIVE, tokens=tokens)
        for key, is_batch, tokens in drawn
    ]
    found = order(*waiting)
    assert sorted(found) == list(range(len(waiting)))
    for key, is_batch, _ in drawn:
        slo = SloClass.BATCH if is_batch else SloClass.INTERACTIVE
        own = [p for p in found if waiting[p].key_id == key and waiting[p].slo is slo]
        assert own == sorted(own)


def test_a_heavier_key_gets_turns_in_proportion() -> None:
    counters = VirtualCounters()
    counters.weigh("a", 3.0)
    waiting = [one(key) for _ in range(24) for key in ("a", "b")]
    places = order(*waiting, counters=counters)
    first = [waiting[place].key_id for place in places[:16]]
    assert first.count("a") == 12 and first.count("b") == 4


def test_a_weight_changes_what_is_paid_and_what_is_given_back() -> None:
    counters = VirtualCounters()
    counters.weigh("a", 4.0)
    counters.charge("a", 1_000)
    assert counters.paid("a") == 250
    counters.weigh("a", 1.0)
    counters.charge("a", -1_000, weight=4.0)  # all that was paid, as it was paid
    assert counters.paid("a") == 0
    counters.charge("a", 10)
    assert counters.paid("a") == 10


def test_weights_are_bounded_in_size_and_number() -> None:
    counters = VirtualCounters()
    for weight in (0.0, -3.0, float("nan"), float("inf"), 1e9, WEIGHT_MIN / 2):
        counters.weigh("a", weight)
        assert counters.weight("a") == 1.0
    for i in range(KEYS_MAX + 5):
        counters.weigh(f"k{i}", 2.0)
    assert counters.weight("k0") == 1.0 and counters.weight(f"k{KEYS_MAX + 4}") == 2.0


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.sampled_from((0.25, 0.5, 1.0, 2.0, 5.0)), min_size=2, max_size=4),
    tokens=st.integers(50, 200),
)
def test_keys_that_always_wait_are_served_by_their_weights(
    weights: list[float], tokens: int
) -> None:
    counters, served = VirtualCounters(), [0] * len(weights)
    for at, weight in enumerate(weights):
        counters.weigh(f"k{at}", weight)
    for _ in range(400):  # one chain, everybody always waits
        place = order(
            *(one(f"k{at}", tokens=tokens) for at in range(len(weights))), counters=counters
        )[0]
        counters.charge(f"k{place}", tokens)
        served[place] += 1
    fair = [400 * weight / sum(weights) for weight in weights]
    assert all(abs(got - due) <= 1 + len(weights) for got, due in zip(served, fair, strict=True))
