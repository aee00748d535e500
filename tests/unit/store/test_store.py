"""Opening a store: what is created, what is refused, and in which words."""

import sqlite3
import sys
from pathlib import Path

import pytest

from coordinator.ports import PastRequest
from coordinator.shell.store import Store, open_store
from coordinator.shell.store_history import RequestHistory
from plait.clock import ManualClock
from plait.errors import ConfigError, UnavailableError


async def open_and_close(url: str | Path) -> None:
    async with open_store(url, ManualClock(), ca_der=b""):
        pass


async def test_the_file_is_its_owners_alone_and_uses_wal(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await store.keys.list_keys()
    assert path.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_a_store_remembers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/deep/store.db"
    async with open_store(url, ManualClock(), ca_der=b"") as store:
        secret, entry = await store.keys.create_key(display_name="me", is_admin=True)
    async with open_store(url, ManualClock(), ca_der=b"") as store:
        assert await store.keys.verify_key(secret) == entry


async def test_a_store_of_a_newer_plait_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await open_and_close(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE plait_schema SET version = 99")
    with pytest.raises(ConfigError, match=r"newer plait \(schema 99") as caught:
        await open_and_close(path)
    assert caught.value.code == "store_too_new"


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        await open_and_close(path)


async def test_a_place_where_no_file_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot be opened"):
        await open_and_close(tmp_path / "file" / "store.db")
    with pytest.raises(ConfigError, match="cannot be opened"):
        await open_and_close(tmp_path)


@pytest.mark.parametrize("url", ["mysql://x/y", "://", "oracle://x", "nonsense+driver://x"])
async def test_urls_that_are_no_store(url: str) -> None:
    with pytest.raises(ConfigError, match="postgresql://"):
        await open_and_close(url)


async def test_postgresql_without_its_driver_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigError, match=r"coordinator,postgres"):
        await open_and_close("postgresql://u:secret@127.0.0.1:1/db")


async def test_a_database_that_does_not_answer_keeps_its_password_out_of_the_message() -> None:
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        await open_and_close("postgresql://u:hunter2@127.0.0.1:1/db")
    assert "hunter2" not in caught.value.message


async def test_a_failing_database_is_unavailable_not_a_crash(store: Store, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("DROP TABLE api_keys")
    with pytest.raises(UnavailableError) as caught:
        await store.keys.list_keys()
    assert caught.value.code == "store_unavailable"


def finished(number: int, key_id: str = "k") -> PastRequest:
    return PastRequest(
        request_id=f"r{number}",
        model_id="m",
        key_id=key_id,
        finish_reason="stop",
        reason="",
        prompt_tokens=3,
        generated_tokens=5,
        num_attempts=1,
        ttft_ms=None if number % 2 else 12.5,
        total_ms=40.0,
        finished_unix_ms=number,
    )


async def test_history_keeps_the_newest(store: Store) -> None:
    history = RequestHistory(store.history.engine, rows_max=10, pruned_every=5)
    for number in range(43):
        await history.record([finished(number)])
    kept = await history.recent(100)
    assert 10 <= len(kept) <= 15
    assert kept[0] == finished(42)
    assert [request.finished_unix_ms for request in await history.recent(3)] == [42, 41, 40]


async def test_history_of_one_key(store: Store) -> None:
    await store.history.record([finished(1, "a"), finished(2, "b"), finished(3, "a")])
    await store.history.record([])
    assert [request.request_id for request in await store.history.recent(9, key_id="a")] == [
        "r3",
        "r1",
    ]


async def test_history_is_paged_filtered_and_searched(store: Store) -> None:
    await store.history.record([finished(number, "ab"[number % 2]) for number in range(10)])
    page, total = await store.history.page(offset=2, limit=2, key_id="a")
    assert total == 5
    assert [request.request_id for request in page] == ["r4", "r2"]
    assert (await store.history.page(offset=0, limit=1, outcome="error"))[1] == 0
    assert (await store.history.page(offset=0, limit=1, model_id="m", outcome="stop"))[1] == 10
    assert await store.history.find("r7") == finished(7, "b")
    assert await store.history.find("r77") is None
