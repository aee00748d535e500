"""Keys of a first start, kept on the next one; history that never stops service."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.core.view import NetworkView, RequestView
from coordinator.ports import ApiKey, KeptRequest, PastRequest
from coordinator.shell.first_start import ADMIN_KEY, ensure_keys, write_token_files
from coordinator.shell.recorder import Recorder
from coordinator.shell.store import open_store
from plait.clock import ManualClock
from plait.crypto.authority import CertificateAuthority
from plait.crypto.tokens import JoinToken, new_join_token
from plait.errors import ConfigError
from plait.types import NodeId
from tests.unit.shell.fakes import FakeCore

DAY_MS = 24 * 3600 * 1000
REQUEST = RequestView(
    request_id="r1",
    model_id="tiny",
    key_id="k",
    state="finished",
    epoch=2,
    prompt_tokens=3,
    max_new_tokens=4,
    num_generated=4,
    age_ms=500,
    ttft_ms=20,
    total_ms=100,
    tokens_per_s=50.0,
    route=(),
    finish_reason="length",
    reason="",
)


async def test_keys_are_made_once_and_the_operators_is_private(tmp_path: Path) -> None:
    async with open_store(tmp_path / "db", ManualClock(), ca_der=b"ca") as store:
        first = await ensure_keys(store.keys, tmp_path)
        again = await ensure_keys(store.keys, tmp_path)
        assert first.client is not None and again.client is None
        assert again.admin == first.admin
        assert (await store.keys.verify_key(first.admin)).is_admin
        assert not (await store.keys.verify_key(first.client)).is_admin
    assert (tmp_path / ADMIN_KEY).stat().st_mode & 0o777 == 0o600


async def test_a_revoked_operators_key_is_replaced_at_the_next_start(tmp_path: Path) -> None:
    async with open_store(tmp_path / "db", ManualClock(), ca_der=b"ca") as store:
        first = await ensure_keys(store.keys, tmp_path)
        entry: ApiKey = await store.keys.verify_key(first.admin)
        await store.keys.revoke_key(entry.key_id)
        second = await ensure_keys(store.keys, tmp_path)
        assert second.admin != first.admin and second.client is None


async def test_an_operators_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    async with open_store(tmp_path / "db", ManualClock(), ca_der=b"ca") as store:
        await ensure_keys(store.keys, tmp_path)
        (tmp_path / ADMIN_KEY).chmod(0o640)
        with pytest.raises(ConfigError, match="chmod 600") as caught:
            await ensure_keys(store.keys, tmp_path)
        assert caught.value.code == "key_file_open"


async def test_token_files_are_private_and_kept_while_they_are_good(tmp_path: Path) -> None:
    path, clock = tmp_path / "join" / "node.token", ManualClock()
    ca_der = CertificateAuthority.create(clock).certificate_der

    async def kept() -> bool:
        before = path.read_text()
        await write_token_files(store.tokens, (path,))
        return path.read_text() == before

    async with open_store(tmp_path / "db", clock, ca_der=ca_der) as store:
        await write_token_files(store.tokens, (path,))
        assert path.stat().st_mode & 0o777 == 0o600
        clock.advance(29 * DAY_MS)
        assert await kept()
        clock.advance(2 * DAY_MS)
        assert not await kept(), "it has expired"
        await store.tokens.revoke_token(JoinToken.parse(path.read_text()).token_id)
        assert not await kept(), "it was revoked"
        token = JoinToken.parse(path.read_text())
        await store.tokens.admit(
            token_id=token.token_id,
            secret=token.secret,
            node_id=NodeId("na"),
            identity_key=b"k",
            display_name="a",
        )
        clock.advance(90 * DAY_MS)
        assert await kept(), "it let a node in, which comes back without it"
        path.write_text("plait1.nonsense")
        assert not await kept()
        path.write_text(new_join_token(ca_der=ca_der).encode())
        assert not await kept(), "it is of a store that was lost"


async def test_a_token_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    async with open_store(tmp_path / "db", ManualClock(), ca_der=b"0" * 64) as store:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match="--token-file"):
            await write_token_files(store.tokens, (tmp_path / "file" / "x.token",))


class OneView:
    """The view that the test wants."""

    def __init__(self, *requests: RequestView) -> None:
        self.requests = requests

    def view(self) -> NetworkView:
        return replace(FakeCore().view(0), requests=self.requests)


class FakeHistory:
    """Remembers, or fails."""

    def __init__(self) -> None:
        self.seen: list[PastRequest] = []
        self.is_broken = False

    async def record(self, requests: Sequence[PastRequest]) -> None:
        if self.is_broken:
            raise OSError("the disk is full")
        self.seen.extend(requests)


class FakeRoutes:
    """Remembers."""

    def __init__(self) -> None:
        self.seen: list[KeptRequest] = []

    async def record(self, requests: Sequence[KeptRequest]) -> None:
        self.seen.extend(requests)


async def test_what_ended_is_recorded_once_with_its_wall_clock_time() -> None:
    running = replace(REQUEST, request_id="r2", total_ms=None, state="decode")
    views, history, clock = OneView(REQUEST, running), FakeHistory(), ManualClock()
    whole = FakeRoutes()
    recorder = Recorder(views, history, clock, whole)
    await recorder.flush()
    await recorder.flush()
    assert [kept.request for kept in whole.seen] == [REQUEST]
    (entry,) = history.seen
    assert (entry.request_id, entry.num_attempts, entry.ttft_ms) == ("r1", 2, 20.0)
    assert entry.finished_unix_ms == clock.unix_ms() - 400


async def test_a_store_that_fails_costs_history_and_nothing_else() -> None:
    history = FakeHistory()
    history.is_broken = True
    await Recorder(OneView(REQUEST), history, ManualClock()).flush()
    assert history.seen == []
