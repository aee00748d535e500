"""The store on a real PostgreSQL, started for the test."""

import asyncio
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from coordinator.ports import KeptRequest, PastRequest
from coordinator.shell.store import Store, open_store
from plait.clock import ManualClock
from plait.crypto.authority import CertificateAuthority
from plait.crypto.tokens import JoinToken
from plait.errors import AuthenticationError, UnavailableError
from plait.types import NodeId
from tests.kit.stores import LATER_KEY_COLUMNS
from tests.kit.tools import needs, without
from tests.kit.wait import until_sync
from tests.unit.dashboard.fakes import request_view

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
CA = CertificateAuthority.create(ManualClock())
pytestmark = [pytest.mark.slow, needs(PROGRAMS, "PostgreSQL", "postgresql")]


def user() -> str | None:
    """PostgreSQL refuses to run as root: the user it runs as, None where that is us."""
    return "postgres" if os.geteuid() == 0 else None


@pytest.fixture(scope="module")
def postgres() -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """The URL of an empty database, and the process behind it."""
    if user() is not None and "postgres" not in {entry.pw_name for entry in pwd.getpwall()}:
        pytest.skip(without("a user named postgres", "postgresql"))
    folder = Path(tempfile.mkdtemp(prefix="plait-postgres-"))
    if user() is not None:
        shutil.chown(folder, "postgres")
    cluster = str(folder / "cluster")
    initdb = [str(PROGRAMS[-1] / "initdb"), "-D", cluster, "-A", "trust", "-U", "plait", "-N"]
    subprocess.run(initdb, check=True, capture_output=True, user=user(), cwd=folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["-p", str(port), "-h", "127.0.0.1", "-k", str(folder), "-F"]
    process = subprocess.Popen(
        [str(PROGRAMS[-1] / "postgres"), "-D", cluster, *options],
        stderr=subprocess.DEVNULL,
        user=user(),
        cwd=folder,
    )
    ready = [str(PROGRAMS[-1] / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    try:
        until_sync(
            lambda: subprocess.run(ready, check=False).returncode == 0,
            timeout_s=20,
            what="PostgreSQL",
        )
        yield f"postgresql://plait@127.0.0.1:{port}/postgres", process
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


async def admit(store: Store, token: JoinToken, node_id: NodeId) -> None:
    await store.tokens.admit(
        token_id=token.token_id,
        secret=token.secret,
        node_id=node_id,
        identity_key=b"k" * 32,
        display_name="x",
    )


async def test_two_coordinators_share_one_postgresql(
    postgres: tuple[str, "subprocess.Popen[bytes]"],
) -> None:
    url, _process = postgres
    clock, ca_der = ManualClock(), CA.certificate_der
    async with (
        open_store(url, clock, ca_der=ca_der) as first,
        open_store(url, clock, ca_der=ca_der) as second,
    ):
        secret, entry = await first.keys.create_key(display_name="Ada", is_admin=True)
        assert await second.keys.verify_key(secret) == entry

        word, _ = await first.tokens.create_token(display_name="", valid_s=0)
        token = JoinToken.parse(word)
        stores = [first, second] * 6
        outcomes = await asyncio.gather(
            *(
                admit(store, token, NodeId(f"n{number:016d}"))
                for number, store in enumerate(stores)
            ),
            return_exceptions=True,
        )
        refused = [error for error in outcomes if isinstance(error, AuthenticationError)]
        assert {error.code for error in refused} == {"token_used"}
        assert len(refused) == len(stores) - 1
        assert len(await second.nodes.list_nodes()) == 1

        record = PastRequest(
            request_id="r",
            model_id="m",
            key_id="k",
            finish_reason="stop",
            reason="",
            prompt_tokens=1,
            generated_tokens=2,
            num_attempts=1,
            ttft_ms=None,
            total_ms=3.5,
            finished_unix_ms=clock.unix_ms(),
        )
        await first.history.record([record])
        assert await second.history.recent(5) == [record]
        whole = KeptRequest(request=request_view(3, state="finished"), names={"n": "it's a box"})
        await first.routes.record([whole])
        assert await second.routes.find("req-0") == (await second.routes.recent(5))[0] == whole
        assert await second.routes.find("%") is None

        await first.sessions.keep({NodeId("a"): (1, 2), NodeId("b"): (3,)})
        clock.advance(1)
        await second.sessions.keep({NodeId("a"): (1, 2, 4)})
        await first.keys.weigh_key(entry.key_id, 2.5)
        assert await first.sessions.recall() == [("b", (3,)), ("a", (1, 2, 4))]


async def test_a_store_of_the_first_schema_is_brought_up_to_date_once(
    postgres: tuple[str, "subprocess.Popen[bytes]"],
) -> None:
    url, _process = postgres
    async with open_store(url, ManualClock(), ca_der=b"") as store:
        _, entry = await store.keys.create_key(display_name="old", is_admin=False)
        async with store.history.engine.begin() as connection:
            for column in LATER_KEY_COLUMNS:
                await connection.execute(text(f"ALTER TABLE api_keys DROP COLUMN {column}"))
            await connection.execute(text("UPDATE plait_schema SET version = 1"))

    async def weight_of_old() -> float:
        async with open_store(url, ManualClock(), ca_der=b"") as opened:
            keys = {key.key_id: key for key in await opened.keys.list_keys()}
            return keys[entry.key_id].weight

    assert await asyncio.gather(*(weight_of_old() for _ in range(3))) == [1.0] * 3


async def test_a_database_that_goes_away_is_unavailable(
    postgres: tuple[str, "subprocess.Popen[bytes]"],
) -> None:
    url, process = postgres
    async with open_store(url, ManualClock(), ca_der=CA.certificate_der) as store:
        await store.keys.list_keys()
        process.send_signal(signal.SIGQUIT)
        process.wait(20)
        with pytest.raises(UnavailableError) as caught:
            await store.keys.list_keys()
    assert caught.value.code == "store_unavailable"
