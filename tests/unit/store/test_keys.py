"""API keys: shown once, kept as a hash, refused when revoked."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.ports import UNLIMITED, KeyLimits
from coordinator.shell.store import Store, open_store
from plait.clock import ManualClock
from plait.crypto.tokens import KEY_PREFIX
from plait.errors import AuthenticationError, InvalidRequestError
from tests.kit.stores import LATER_KEY_COLUMNS

NOW_MS = 1_700_000_000_000


async def refusal(store: Store, secret: str) -> str:
    with pytest.raises(AuthenticationError) as caught:
        await store.keys.verify_key(secret)
    assert secret not in caught.value.message or not secret
    return caught.value.code


async def test_a_key_is_recognised_and_listed(store: Store, clock: ManualClock) -> None:
    secret, entry = await store.keys.create_key(display_name=" Ada\n", is_admin=False)
    clock.advance(1)
    _, newer = await store.keys.create_key(display_name="op", is_admin=True)
    assert entry.display_name == "Ada"
    assert await store.keys.verify_key(secret) == entry
    assert await store.keys.list_keys() == [newer, entry]


async def test_only_hashes_reach_the_disk(store: Store, tmp_path: Path) -> None:
    secret, _ = await store.keys.create_key(display_name="x", is_admin=False)
    token, _ = await store.tokens.create_token(display_name="x", valid_s=0)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        dump = "\n".join(connection.iterdump())
    assert "api_keys" in dump
    assert secret.removeprefix(KEY_PREFIX).partition("-")[2] not in dump
    assert token not in dump


async def test_wrong_keys_are_refused(store: Store) -> None:
    secret, _ = await store.keys.create_key(display_name="x", is_admin=False)
    for wrong in (secret[:-1] + ("A" if secret[-1] != "A" else "B"), secret + "x", "", "sk-plait-"):
        assert await refusal(store, wrong) == "key_unknown"


async def test_a_revoked_key_is_refused_at_once(store: Store) -> None:
    secret, entry = await store.keys.create_key(display_name="x", is_admin=False)
    await store.keys.verify_key(secret)
    await store.keys.revoke_key(entry.key_id)
    assert await refusal(store, secret) == "key_revoked"
    assert (await store.keys.list_keys())[0].is_revoked
    await store.keys.revoke_key(entry.key_id)


async def test_revocation_by_another_process_is_seen_after_the_cache_ends(
    store: Store, clock: ManualClock, tmp_path: Path
) -> None:
    secret, entry = await store.keys.create_key(display_name="x", is_admin=False)
    await store.keys.verify_key(secret)
    async with open_store(tmp_path / "store.db", clock, ca_der=b"") as other:
        await other.keys.revoke_key(entry.key_id)
    await store.keys.verify_key(secret)
    clock.advance(10_000)
    assert await refusal(store, secret) == "key_revoked"


async def test_an_unknown_key_cannot_be_revoked(store: Store) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await store.keys.revoke_key("nothere")
    assert (caught.value.code, caught.value.param) == ("not_found", "key_id")


async def test_a_name_is_bounded(store: Store) -> None:
    with pytest.raises(InvalidRequestError):
        await store.keys.create_key(display_name="x" * 129, is_admin=False)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=100))
async def test_random_text_is_refused_and_nothing_else(store: Store, text: str) -> None:
    for secret in (text, "sk-plait-abcdef-" + text):
        with pytest.raises(AuthenticationError):
            await store.keys.verify_key(secret)


async def test_a_key_keeps_its_weight(store: Store, tmp_path: Path) -> None:
    secret, entry = await store.keys.create_key(display_name="x", is_admin=False, weight=2.5)
    assert (await store.keys.verify_key(secret)).weight == entry.weight == 2.5
    await store.keys.weigh_key(entry.key_id, 0.5)
    assert (await store.keys.verify_key(secret)).weight == 0.5  # whatever was cached
    async with open_store(tmp_path / "store.db", ManualClock(), ca_der=b"") as again:
        assert [key.weight for key in await again.keys.list_keys()] == [0.5]
    with pytest.raises(InvalidRequestError) as caught:
        await store.keys.weigh_key("nobody", 1.0)
    assert caught.value.code == "not_found"


@pytest.mark.parametrize("weight", [0.0, -1.0, 0.009, 101.0, float("nan"), float("inf")])
async def test_a_weight_that_is_none_is_refused(store: Store, weight: float) -> None:
    with pytest.raises(InvalidRequestError, match=r"from 0\.01 to 100"):
        await store.keys.create_key(display_name="x", is_admin=False, weight=weight)
    _, entry = await store.keys.create_key(display_name="x", is_admin=False)
    with pytest.raises(InvalidRequestError, match=r"from 0\.01 to 100"):
        await store.keys.weigh_key(entry.key_id, weight)
    assert [key.weight for key in await store.keys.list_keys()] == [1.0]


async def test_keys_of_an_older_store_weigh_as_much_as_each_other(
    store: Store, tmp_path: Path
) -> None:
    secret, entry = await store.keys.create_key(display_name="old", is_admin=True)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        for column in LATER_KEY_COLUMNS:
            connection.execute(f"ALTER TABLE api_keys DROP COLUMN {column}")
        connection.execute("DROP TABLE node_sessions")
        connection.execute("UPDATE plait_schema SET version = 1")
    for _ in range(2):  # the second opening has nothing to do
        async with open_store(tmp_path / "store.db", ManualClock(), ca_der=b"") as again:
            assert await again.keys.verify_key(secret) == entry
    with sqlite3.connect(tmp_path / "store.db") as connection:
        assert connection.execute("SELECT version FROM plait_schema").fetchall() == [(3,)]
    async with open_store(tmp_path / "store.db", ManualClock(), ca_der=b"") as again:
        await again.keys.weigh_key(entry.key_id, 3.0)
        assert (await again.keys.verify_key(secret)).weight == 3.0


LIMITS = KeyLimits(
    requests_per_min=60, tokens_per_min=9_000, models=("a", "b/c"), expires_unix_ms=NOW_MS + 1_000
)


async def test_limits_are_kept_changed_and_taken_away(store: Store) -> None:
    secret, entry = await store.keys.create_key(display_name="x", is_admin=False, limits=LIMITS)
    assert entry.limits == LIMITS
    assert await store.keys.verify_key(secret) == entry
    other = KeyLimits(tokens_per_min=1)
    await store.keys.limit_key(entry.key_id, other)
    assert (await store.keys.verify_key(secret)).limits == other
    await store.keys.limit_key(entry.key_id, UNLIMITED)
    assert [key.limits for key in await store.keys.list_keys()] == [UNLIMITED]
    with pytest.raises(InvalidRequestError) as caught:
        await store.keys.limit_key("nobody", UNLIMITED)
    assert caught.value.code == "not_found"


async def test_a_key_is_refused_from_the_moment_it_expires(tmp_path: Path) -> None:
    clock = ManualClock(unix_ms=NOW_MS)
    async with open_store(tmp_path / "s.db", clock, ca_der=b"") as store:
        secret, _ = await store.keys.create_key(display_name="x", is_admin=False, limits=LIMITS)
        clock.advance(999)
        await store.keys.verify_key(secret)
        clock.advance(1)
        with pytest.raises(AuthenticationError, match="has expired") as caught:
            await store.keys.verify_key(secret)
    assert caught.value.code == "key_expired"


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        (KeyLimits(requests_per_min=0), "requests_per_min"),
        (KeyLimits(tokens_per_min=-5), "tokens_per_min"),
        (KeyLimits(tokens_per_min=10**12), "tokens_per_min"),
        (KeyLimits(models=("",)), "models"),
        (KeyLimits(models=tuple(f"m{n}" for n in range(65))), "models"),
        (KeyLimits(expires_unix_ms=-1), "expires_unix_ms"),
    ],
)
async def test_limits_that_are_none_are_refused(
    store: Store, limits: KeyLimits, named: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await store.keys.create_key(display_name="x", is_admin=False, limits=limits)
    assert caught.value.param == named
    assert not await store.keys.list_keys()
