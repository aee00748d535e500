"""`plait node doctor`: every failure under its own word, with what to do, before any download."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from node.agent.enrol import enrol
from node.doctor import examine
from node.doctor_checks import Check, Verdict
from node.doctor_machine import Machine, Patient
from node.owner.settings import read_settings
from plait.clock import ManualClock, SystemClock
from plait.crypto.authority import CertificateAuthority
from plait.crypto.tokens import new_join_token
from tests.integration.enrolment_support import Network, running_network
from tests.unit.node.fake_engine import tiny_spec

GPU = ("NVIDIA GeForce RTX 4090", "575.57")
ENOUGH = Machine(
    memory_free_bytes=8 << 30,
    gpu=GPU,
    vram_free_bytes=8 << 30,
    wants_gpu=False,
    may_use_gpu=True,
    torch="2.9.0",
)


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    async with running_network(tmp_path / "coordinator", specs=[tiny_spec()]) as running:
        yield running


def patient(
    folder: Path, address: str, token: str | None, *sets: str, machine: Machine = ENOUGH
) -> Patient:
    clock = SystemClock()
    return Patient(
        home=folder / "node",
        coordinator=address,
        token=token,
        settings=read_settings(folder / "none.toml", environ={}, flags=sets),
        machine=machine,
        models_dir=folder / "models",
        memory_bytes=None,
        listen=("127.0.0.1", 0),
        clock=clock,
        now_s=lambda: clock.monotonic_ms() / 1e3,
        reach_s=0.5,
    )


async def checked(asked: Patient) -> dict[str, Check]:
    checks = await examine(asked)
    assert [
        check.name for check in checks if check.verdict in ("warn", "fail") and not check.help
    ] == []
    return {check.name: check for check in checks}


def failures(checks: dict[str, Check]) -> dict[str, str]:
    return {name: check.code for name, check in checks.items() if check.verdict is Verdict.FAIL}


async def test_a_machine_that_would_serve(network: Network, tmp_path: Path) -> None:
    token = await network.token()
    checks = await checked(patient(tmp_path, network.public_address, token))
    assert {check.verdict for check in checks.values()} == {Verdict.OK}
    assert "layers 0-5 of tiny" in checks["span"].found
    await enrol(network.public_address, token, tmp_path / "node", "x")  # it was not spent
    again = await checked(patient(tmp_path, "", None))
    assert failures(again) == {} and again["token"].verdict is Verdict.OK
    spent = await checked(patient(tmp_path, network.public_address, token))
    assert failures(spent) == {"token": "token_used"}


def stranger() -> str:
    ca = CertificateAuthority.create(SystemClock())
    return new_join_token(ca_der=ca.certificate_der).encode()


@contextlib.asynccontextmanager
async def silent() -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_the_ways_not_to_reach_a_coordinator_are_told_apart(
    network: Network, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        refusing = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = await checked(patient(tmp_path, refusing, stranger()))
    unknown = await checked(patient(tmp_path, "no-such-host.invalid", stranger()))
    async with silent() as address:
        late = await checked(patient(tmp_path, address, stranger()))
    other = await checked(patient(tmp_path, network.public_address, stranger()))
    assert failures(unknown) == {"coordinator": "dns_failed"}
    assert failures(refused) == {"coordinator": "connection_refused"}
    assert failures(late) == {"coordinator": "connect_timeout"}
    assert failures(other) == {"coordinator": "wrong_ca"}
    for name in ("token", "clock", "ports", "memory", "disk", "span"):
        assert refused[name].verdict is Verdict.SKIPPED


async def test_a_clock_that_is_wrong(network: Network, tmp_path: Path) -> None:
    token = await network.token()
    asked = patient(tmp_path, network.public_address, token)
    for behind_s, verdict in ((600, Verdict.WARN), (7_200, Verdict.FAIL)):
        late = ManualClock(unix_ms=SystemClock().unix_ms() - behind_s * 1_000)
        clock = (await checked(replace(asked, clock=late)))["clock"]
        assert (clock.verdict, clock.code) == (verdict, "clock_skew")
        assert f"{behind_s} s behind" in clock.found


async def test_tokens_that_let_nobody_in(network: Network, tmp_path: Path) -> None:
    token = await network.token()
    (entry,) = await network.store.tokens.list_tokens()
    await network.store.tokens.revoke_token(entry.token_id)
    revoked = await checked(patient(tmp_path, network.public_address, token))
    assert failures(revoked) == {"token": "token_revoked"}
    nothing = await checked(patient(tmp_path, network.public_address, None))
    assert failures(nothing) == {"token": "not_enrolled"}


async def test_a_port_that_is_taken_or_answered_by_something_else(
    network: Network, tmp_path: Path
) -> None:
    token = await network.token()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        asked = patient(tmp_path, network.public_address, token)
        port = taken.getsockname()[1]
        checks = await checked(replace(asked, listen=("127.0.0.1", port)))
    assert failures(checks) == {"ports": "port_taken"}


async def test_a_port_that_nobody_reaches_from_outside(network: Network, tmp_path: Path) -> None:
    """It listens on an address of this machine that the coordinator does not see."""
    token = await network.token()
    asked = patient(tmp_path, network.public_address, token)
    checks = await checked(replace(asked, listen=("127.0.0.2", 0)))
    assert checks["ports"].code == "not_reachable"
    assert "forward" in checks["ports"].help and failures(checks) == {}


async def test_too_little_disk_names_the_limit(network: Network, tmp_path: Path) -> None:
    token = await network.token()
    full = "disk_min_free_gb=999999"
    checks = await checked(patient(tmp_path, network.public_address, token, full))
    assert failures(checks) == {"disk": "disk_full"}
    assert "disk_min_free_gb" in checks["disk"].found


async def test_too_little_memory_says_how_much_is_missing(network: Network, tmp_path: Path) -> None:
    token = await network.token()
    small = replace(ENOUGH, gpu=None, memory_free_bytes=8 << 20)
    checks = await checked(patient(tmp_path, network.public_address, token, machine=small))
    assert failures(checks) == {"memory": "not_enough_memory"}
    assert "MiB more" in checks["memory"].found
    assert checks["gpu"].code == "no_gpu"


@pytest.mark.parametrize(
    ("machine", "code"),
    [
        (replace(ENOUGH, gpu=None, wants_gpu=True), "no_driver"),
        (replace(ENOUGH, torch="2.9.0+cpu", wants_gpu=True), "torch_without_cuda"),
    ],
)
async def test_a_gpu_that_cannot_be_used(
    network: Network, tmp_path: Path, machine: Machine, code: str
) -> None:
    token = await network.token()
    checks = await checked(patient(tmp_path, network.public_address, token, machine=machine))
    assert failures(checks) == {"gpu": code}


async def test_an_owner_who_allows_no_model_of_the_network(
    network: Network, tmp_path: Path
) -> None:
    token = await network.token()
    sets = 'models_allow=["qwen*"]'
    checks = await checked(patient(tmp_path, network.public_address, token, sets))
    assert failures(checks) == {"span": "no_model_allowed"}


@pytest.mark.slow
async def test_the_command_prints_json_and_says_by_its_code_whether_all_is_well(
    network: Network, tmp_path: Path
) -> None:
    token = await network.token()
    words = [sys.executable, "-m", "plait.cli.main", "node", "doctor", network.public_address]
    words += ["--token", token, "--home", str(tmp_path / "n"), "--device", "cpu", "--json"]
    for extra, code in (((), 0), (("--set", "disk_min_free_gb=999999"), 1)):
        ended = await asyncio.to_thread(
            subprocess.run,
            [*words, *extra],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == code, ended
        assert json.loads(ended.stdout)["is_ready"] is (code == 0)
    assert not (tmp_path / "n").exists()
