"""`plait ask` and `plait chat` against the gRPC door."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from coordinator.core import events as ev
from plait.cli.app import app
from plait.types import Reason
from tests.kit.gateway_rig import GatewayRig, open_doors
from tests.kit.scripted_network import API_KEY, ScriptedNetwork, says


async def plait(rig: GatewayRig, *arguments: str, typed: str = "") -> Result:
    environment = {
        "PLAIT_ADDRESS": rig.address,
        "PLAIT_API_KEY": API_KEY,
        "PLAIT_CA": rig.ca_pem.decode(),
    }

    def invoke() -> Result:
        return CliRunner().invoke(app, list(arguments), env=environment, input=typed)

    return await asyncio.to_thread(invoke)


async def test_ask_streams_the_answer_and_shows_figures() -> None:
    network = ScriptedNetwork(says("Because. 🦊"))
    async with open_doors(network) as rig:
        plain = await plait(rig, "ask", "Why?")
        verbose = await plait(rig, "ask", "Why?", "--verbose", "--system", "be brief")
        raw = await plait(rig, "ask", "-", "--raw", "--max-tokens", "3", typed="Once")
    assert (plain.exit_code, plain.stdout) == (0, "Because. 🦊\n")
    assert "nfirst [0-1] → nlast [2-3]" in verbose.stderr
    assert "tokens/s" in verbose.stderr
    assert bytes(network.starts[1].prompt_token_ids).startswith(b"<system>be brief<user>Why?")
    assert raw.stdout == "Bec\n"
    assert bytes(network.starts[2].prompt_token_ids) == b"Once"


async def test_ask_says_what_failed() -> None:
    network = ScriptedNetwork(refusal=Reason(code="span_unavailable", message="no layers 2-3"))
    async with open_doors(network) as rig:
        missing = await plait(rig, "ask", "Why?")
        unknown = await plait(rig, "ask", "Why?", "--model", "gpt")
    assert missing.exit_code == unknown.exit_code == 1
    assert "no layers 2-3" in str(missing.exception)
    assert "served: tiny" in str(unknown.exception)


async def test_chat_remembers_forgets_and_leaves() -> None:
    network = ScriptedNetwork(says("yes"))
    async with open_doors(network) as rig:
        typed = "one\n\ntwo\n/nonsense\n/reset\nthree\n/exit\nnever\n"
        result = await plait(rig, "chat", "--system", "S", typed=typed)
    assert result.exit_code == 0
    prompts = [bytes(start.prompt_token_ids).decode() for start in network.starts]
    assert prompts == [
        "<system>S<user>one<assistant>",
        "<system>S<user>one<assistant>yes<user>two<assistant>",
        "<system>S<user>three<assistant>",
    ]
    assert "/nonsense is no command" in result.stdout


async def test_chat_survives_a_refused_question() -> None:
    network = ScriptedNetwork(refusal=Reason(code="queue_full", message="[all] full"))
    async with open_doors(network) as rig:
        result = await plait(rig, "chat", typed="one\n")
    assert result.exit_code == 0
    assert "[all] full" in result.stdout
    assert len(network.of(ev.RequestSubmitted)) == 1


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_without_a_network_the_profile_is_named(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PLAIT_HOME", str(tmp_path))
    for name in ("PLAIT_ADDRESS", "PLAIT_API_KEY", "PLAIT_CA"):
        monkeypatch.delenv(name, raising=False)
    arguments = [command, "x"] if command == "ask" else [command]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "no client profile" in str(result.exception)


async def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
    network = ScriptedNetwork(pause_after=3)
    async with open_doors(network) as rig:
        chat = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "plait.cli.main", "chat", "--max-tokens", "9"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                "PLAIT_ADDRESS": rig.address,
                "PLAIT_API_KEY": API_KEY,
                "PLAIT_CA": rig.ca_pem.decode(),
            },
        )
        assert chat.stdin is not None
        assert chat.stdout is not None
        try:
            async with asyncio.timeout(30):
                chat.stdin.write(b"one\n")
                answer = await network.first_tokens(3)
                await chat.stdout.readuntil(answer)
                chat.send_signal(signal.SIGINT)
                await chat.stdout.readuntil(b"[stopped]")
                await network.wait_for(lambda: bool(network.of(ev.RequestCancelled)))
                network.pause_after = None
                chat.stdin.write(b"two\n/exit\n")
                assert await chat.wait() == 0
        finally:
            if chat.returncode is None:
                chat.kill()
    again = bytes(network.starts[1].prompt_token_ids)
    assert again == b"<user>one<assistant>" + answer + b"<user>two<assistant>"


async def test_ctrl_c_ends_ask_and_cancels() -> None:
    network = ScriptedNetwork(pause_after=3)
    async with open_doors(network) as rig:
        ask = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "plait.cli.main", "ask", "one"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                "PLAIT_ADDRESS": rig.address,
                "PLAIT_API_KEY": API_KEY,
                "PLAIT_CA": rig.ca_pem.decode(),
            },
        )
        assert ask.stdout is not None
        try:
            async with asyncio.timeout(30):
                await ask.stdout.readuntil(await network.first_tokens(3))
                ask.send_signal(signal.SIGINT)
                _, errors = await ask.communicate()
                await network.wait_for(lambda: bool(network.of(ev.RequestCancelled)))
        finally:
            if ask.returncode is None:
                ask.kill()
    assert ask.returncode == 130
    assert b"Traceback" not in errors
