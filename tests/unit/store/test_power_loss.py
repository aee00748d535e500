"""What the store acknowledged is on the disk, and a disk that fails is told of."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from coordinator.shell.store import Store, open_store
from plait.clock import ManualClock
from plait.crypto.tokens import JoinToken
from plait.errors import PlaitError, UnavailableError
from plait.types import NodeId
from tests.kit.sqlite_disk import SqliteDisk, installed, library
from tests.unit.store.conftest import CA

SQLITE = library()
pytestmark = pytest.mark.skipif(SQLITE is None, reason="SQLite is a part of this Python")
NODE = NodeId("naaaaaaaaaaaaaaaa")
Known = tuple[object, ...]
"""All that a store knows, but for secrets and times."""


@asynccontextmanager
async def store_in(folder: Path) -> AsyncIterator[Store]:
    url = folder / "store.db"
    async with open_store(url, ManualClock(), ca_der=CA.certificate_der) as store:
        yield store


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose tables are there."""
    folder = tmp_path_factory.mktemp("empty")

    async def make() -> None:
        async with store_in(folder):
            pass

    asyncio.run(make())
    return folder


class Operator:
    """Does one thing after another, as long as they are acknowledged."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.secrets: list[str] = []
        self.key_id = ""
        self.token: JoinToken | None = None
        self.knew: list[Known] = []
        self.things: tuple[Callable[[], Awaitable[None]], ...] = (
            self.make_key,
            self.make_key,
            self.make_token,
            self.weigh,
            self.admit,
            self.revoke,
            self.ban,
            self.remember,
        )

    async def make_key(self) -> None:
        name = f"key {len(self.secrets)}"
        secret, entry = await self.store.keys.create_key(display_name=name, is_admin=False)
        self.secrets.append(secret)
        self.key_id = self.key_id or entry.key_id

    async def make_token(self) -> None:
        word, _ = await self.store.tokens.create_token(display_name="attic", valid_s=60)
        self.token = JoinToken.parse(word)

    async def weigh(self) -> None:
        await self.store.keys.weigh_key(self.key_id, 3.0)

    async def admit(self) -> None:
        assert self.token is not None
        await self.store.tokens.admit(
            token_id=self.token.token_id,
            secret=self.token.secret,
            node_id=NODE,
            identity_key=b"k",
            display_name="attic",
        )

    async def revoke(self) -> None:
        await self.store.keys.revoke_key(self.key_id)

    async def ban(self) -> None:
        await self.store.nodes.ban(NODE)

    async def remember(self) -> None:
        await self.store.sessions.keep({NODE: (1_000, 2_000)})

    async def work(self) -> None:
        """Until something is refused. `knew` is what was known after each thing."""
        self.knew.append(await known(self.store))
        for thing in self.things:
            try:
                await thing()
            except UnavailableError as error:
                assert error.code == "store_unavailable" and "check its disk" in error.message
                return
            self.knew.append(await known(self.store))


async def known(store: Store) -> Known:
    keys = sorted((k.display_name, k.weight, k.is_revoked) for k in await store.keys.list_keys())
    tokens = [(t.state, t.node_id) for t in await store.tokens.list_tokens()]
    nodes = [(n.node_id, n.is_banned) for n in await store.nodes.list_nodes()]
    return (keys, tokens, nodes, list(await store.sessions.recall()))


async def test_a_loss_of_power_at_any_write_or_flush_costs_nothing_that_was_acknowledged(
    empty: Path, tmp_path: Path
) -> None:
    assert SQLITE is not None
    undisturbed: list[Known] = []
    for moment in range(0, 10_000, 4):
        before, after = tmp_path / f"{moment}-before", tmp_path / f"{moment}-after"
        shutil.copytree(empty, before)
        after.mkdir()
        disk, is_whole = SqliteDisk(), False
        with installed(disk, SQLITE):
            async with store_in(before) as store:
                disk.operations_left = moment if undisturbed else None
                operator = Operator(store)
                await operator.work()
                is_whole = disk.is_on
                disk.operations_left = 0
        disk.after_the_loss(after, Random(moment))
        async with store_in(after) as store:
            found = await known(store)
            num_done = len(operator.knew) - 1
            undisturbed = undisturbed or operator.knew
            assert found in undisturbed[num_done : num_done + 2], (moment, num_done)
        if is_whole and moment:
            break
    assert len(undisturbed) == 9 and moment > 20


@pytest.mark.parametrize("is_full", [True, False])
async def test_a_disk_that_fails_is_told_of_and_what_it_refused_is_not_there(
    empty: Path, tmp_path: Path, *, is_full: bool
) -> None:
    """Full, or unable to flush. What is kept can still be read; once the disk is well, so is the
    store."""
    assert SQLITE is not None
    before, after = tmp_path / "before", tmp_path / "after"
    shutil.copytree(empty, before)
    after.mkdir()
    disk = SqliteDisk()
    with installed(disk, SQLITE):
        async with store_in(before) as store:
            operator = Operator(store)
            await operator.make_key()
            knew = await known(store)
            disk.is_full, disk.is_failing = is_full, not is_full
            for _ in range(3):
                with pytest.raises(UnavailableError, match="check its disk") as caught:
                    await operator.make_key()
                assert caught.value.is_retryable
            assert await known(store) == knew
            assert (await store.keys.verify_key(operator.secrets[0])).display_name == "key 0"
            disk.is_full = disk.is_failing = False
            await operator.make_key()
            knew = await known(store)
            disk.operations_left = 0
    disk.after_the_loss(after, Random(1))
    async with store_in(after) as store:
        assert await known(store) == knew
        for secret in operator.secrets:
            await store.keys.verify_key(secret)


async def test_a_store_that_was_being_made_is_made_at_the_next_start(tmp_path: Path) -> None:
    assert SQLITE is not None
    for moment in range(0, 10_000, 7):
        before, after = tmp_path / f"{moment}-before", tmp_path / f"{moment}-after"
        before.mkdir()
        after.mkdir()
        disk = SqliteDisk()
        disk.operations_left = moment
        is_made = False
        with installed(disk, SQLITE):
            try:
                async with store_in(before):
                    is_made = disk.is_on
                    disk.operations_left = 0
            except PlaitError:
                pass
        disk.after_the_loss(after, Random(moment))
        async with store_in(after) as store:
            await store.keys.create_key(display_name="me", is_admin=True)
        if is_made:
            return
    raise AssertionError("it was never made")
