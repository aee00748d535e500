"""How many generations one key and one address may have open."""

import pytest

from coordinator.gateway.limits import DoorLimits, Turnstile
from plait.errors import OverloadedError

LIMITS = DoorLimits(per_key_max=2, per_address_max=3)


def test_a_key_has_so_many_places_wherever_it_comes_from() -> None:
    turnstile = Turnstile(LIMITS)
    with (
        turnstile.enter(key_id="a", address="1", num=1),
        turnstile.enter(key_id="a", address="2", num=1),
    ):
        with (
            pytest.raises(OverloadedError, match="this key, at most 2"),
            turnstile.enter(key_id="a", address="3", num=1),
        ):
            pass
        with turnstile.enter(key_id="b", address="3", num=2):
            pass
    with turnstile.enter(key_id="a", address="1", num=2):
        pass


def test_an_address_has_so_many_places_whatever_its_keys() -> None:
    turnstile = Turnstile(LIMITS)
    with turnstile.enter(key_id="a", address="1", num=2):
        with (
            pytest.raises(OverloadedError, match="this address, at most 3"),
            turnstile.enter(key_id="b", address="1", num=2),
        ):
            pass
        with turnstile.enter(key_id="b", address="1", num=1):
            pass  # who was refused holds no place
    with turnstile.enter(key_id="c", address="1", num=2):
        pass
