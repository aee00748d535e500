"""What a key may use in a minute, and which models it may ask."""

import pytest

from coordinator.gateway.quotas import KEYS_MAX, Quotas, check_model, may_use
from coordinator.ports import UNLIMITED, KeyLimits
from plait.clock import ManualClock
from plait.errors import InvalidRequestError, ModelError, OverloadedError

FEW = KeyLimits(requests_per_min=3)
SHORT = KeyLimits(tokens_per_min=600)


def test_a_key_without_limits_is_never_refused() -> None:
    quotas = Quotas(ManualClock())
    for _ in range(100):
        quotas.charge("k", UNLIMITED, 1_000_000)


def test_a_quiet_key_may_burst_and_then_waits_for_its_share() -> None:
    clock = ManualClock()
    quotas = Quotas(clock)
    for _ in range(3):
        quotas.charge("k", FEW, 10)
    with pytest.raises(OverloadedError, match="3 requests in a minute") as caught:
        quotas.charge("k", FEW, 10)
    assert caught.value.code == "rate_limited"
    assert caught.value.retry_after_s == pytest.approx(20.0)
    quotas.charge("other", FEW, 10)
    clock.advance(19_999)
    with pytest.raises(OverloadedError):
        quotas.charge("k", FEW, 10)
    clock.advance(2)
    quotas.charge("k", FEW, 10)


def test_tokens_are_charged_in_advance_and_what_was_not_used_is_given_back_once() -> None:
    quotas = Quotas(ManualClock())
    charge = quotas.charge("k", SHORT, 500)
    with pytest.raises(OverloadedError, match="200 are asked for and 100 are left") as caught:
        quotas.charge("k", SHORT, 200)
    assert caught.value.retry_after_s == pytest.approx(10.0)
    for _ in range(2):
        charge.settle(50)
    quotas.charge("k", SHORT, 550)
    with pytest.raises(OverloadedError):
        quotas.charge("k", SHORT, 1)


def test_who_is_refused_for_tokens_has_used_no_request() -> None:
    both = KeyLimits(requests_per_min=1, tokens_per_min=100)
    quotas = Quotas(ManualClock())
    with pytest.raises(InvalidRequestError):
        quotas.charge("k", both, 101)
    quotas.charge("k", both, 100)


def test_what_never_fits_is_a_mistake_and_not_a_matter_of_time() -> None:
    with pytest.raises(InvalidRequestError, match="come to 10000 tokens") as caught:
        Quotas(ManualClock()).charge("k", KeyLimits(tokens_per_min=100), 10_000)
    assert (caught.value.code, caught.value.param) == ("over_key_limit", "max_tokens")


def test_what_was_promised_before_is_charged_even_beyond_the_limit() -> None:
    clock = ManualClock()
    quotas = Quotas(clock)
    quotas.charge("k", SHORT, 600)
    quotas.charge("k", SHORT, 300, is_owed=True)
    clock.advance(30_000)
    with pytest.raises(OverloadedError) as caught:
        quotas.charge("k", SHORT, 10)
    assert caught.value.retry_after_s == pytest.approx(1.0)


def test_a_limit_that_is_lowered_holds_at_once() -> None:
    quotas = Quotas(ManualClock())
    quotas.charge("k", SHORT, 100).settle(0)
    with pytest.raises(InvalidRequestError):
        quotas.charge("k", KeyLimits(tokens_per_min=50), 60)
    quotas.charge("k", KeyLimits(tokens_per_min=50), 50)
    with pytest.raises(OverloadedError):
        quotas.charge("k", KeyLimits(tokens_per_min=50), 1)


def test_the_books_are_bounded() -> None:
    quotas = Quotas(ManualClock())
    quotas.charge("first", FEW, 1)
    for number in range(KEYS_MAX):
        quotas.charge(f"k{number}", FEW, 1)
    for _ in range(3):  # forgotten: full again
        quotas.charge("first", FEW, 1)
    with pytest.raises(OverloadedError):
        quotas.charge("first", FEW, 1)


def test_a_key_may_be_held_to_some_models() -> None:
    limits = KeyLimits(models=("a", "b"))
    assert may_use(limits, "a") and may_use(UNLIMITED, "c")
    check_model("k", limits, "b")
    with pytest.raises(ModelError, match="may not use c; it may use a, b") as caught:
        check_model("k", limits, "c")
    assert caught.value.code == "model_not_allowed"
