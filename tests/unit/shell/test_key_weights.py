"""What keys weigh reaches the core: once, before requests, and again when it changes."""

import pytest

from coordinator.core.events import Event, KeyWeighed
from coordinator.shell.key_weights import TOLD_MAX, WeighedKeys
from plait.errors import AuthenticationError, OverloadedError
from tests.kit.stores import MemoryKeys


class FullableInbox:
    """Keeps events, or refuses them while it is full."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.is_full = False

    def post(self, event: Event) -> None:
        if self.is_full:
            raise OverloadedError("full", reason="coordinator_busy")
        self.events.append(event)


def weighed(keys: MemoryKeys) -> tuple[WeighedKeys, FullableInbox]:
    inbox = FullableInbox()
    return WeighedKeys(keys, inbox), inbox


async def test_a_weight_is_told_once_with_the_first_request() -> None:
    keys = MemoryKeys()
    heavy, light = keys.add("heavy", "h", weight=4.0), keys.add("light", "l")
    front, inbox = weighed(keys)
    for secret in ("light", "heavy", "light", "heavy"):
        await front.verify_key(secret)
    assert inbox.events == [KeyWeighed(key_id=heavy.key_id, weight=4.0)]
    await front.weigh_key(light.key_id, 0.5)
    await front.verify_key("light")
    await front.weigh_key(heavy.key_id, 1.0)
    assert inbox.events[1:] == [
        KeyWeighed(key_id=light.key_id, weight=0.5),
        KeyWeighed(key_id=heavy.key_id, weight=1.0),
    ]


async def test_a_weight_that_another_process_changed_is_told_with_the_next_request() -> None:
    keys = MemoryKeys()
    key = keys.add("k", "k")
    front, inbox = weighed(keys)
    await front.verify_key("k")
    await keys.weigh_key(key.key_id, 7.0)
    await front.verify_key("k")
    assert inbox.events == [KeyWeighed(key_id=key.key_id, weight=7.0)]


async def test_a_full_inbox_costs_nobody_a_request_and_hears_it_later() -> None:
    keys = MemoryKeys()
    key = keys.add("k", "k", weight=2.0)
    front, inbox = weighed(keys)
    inbox.is_full = True
    assert await front.verify_key("k") == key
    inbox.is_full = False
    await front.verify_key("k")
    assert inbox.events == [KeyWeighed(key_id=key.key_id, weight=2.0)]


async def test_what_was_told_is_remembered_of_so_many_keys() -> None:
    keys = MemoryKeys()
    front, inbox = weighed(keys)
    for number in range(TOLD_MAX + 1):
        keys.add(f"k{number}", "k", weight=2.0)
        await front.verify_key(f"k{number}")
    told = len(inbox.events)
    await front.verify_key(f"k{TOLD_MAX}")
    assert len(inbox.events) == told
    await front.verify_key("k0")
    assert len(inbox.events) == told + 1


async def test_refusals_and_the_rest_come_through() -> None:
    keys = MemoryKeys()
    front, inbox = weighed(keys)
    secret, entry = await front.create_key(display_name="n", is_admin=True, weight=3.0)
    assert await front.list_keys() == [entry]
    assert (await front.verify_key(secret)).weight == 3.0
    await front.revoke_key(entry.key_id)
    with pytest.raises(AuthenticationError):
        await front.verify_key(secret)
    assert len(inbox.events) == 1
