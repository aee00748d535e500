"""The coordinator's own broker stops in mid-stream: nobody who asks a question notices."""

import asyncio
from pathlib import Path

import pytest

from coordinator.shell import telemetry_hub
from coordinator.shell.broker import EmbeddedBroker
from plait.sdk.requests import GenerateOptions
from tests.kit.in_process import small_network
from tests.kit.metrics import figures
from tests.kit.wait import until

pytestmark = pytest.mark.slow
PROMPT = list(range(40, 72))
NUM_TOKENS = 200
OPTIONS: GenerateOptions = {"max_tokens": NUM_TOKENS, "temperature": 0.0, "ignore_eos": True}
MESSAGES = "plait_telemetry_messages_total"


async def test_a_stream_is_unchanged_when_the_coordinators_broker_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers: list[EmbeddedBroker] = []

    class KnownBroker(EmbeddedBroker):
        async def start(self) -> None:
            await super().start()
            brokers.append(self)

    monkeypatch.setattr(telemetry_hub, "EmbeddedBroker", KnownBroker)
    async with (
        small_network(tmp_path, num_nodes=2, has_broker=True) as network,
        network.client() as client,
    ):
        (broker,) = brokers
        everybody = len(network.nodes) + 1
        await until(lambda: broker.stats().num_connections == everybody, timeout_s=20)
        async with asyncio.timeout(20):
            while sum(figures(await network.metrics(), MESSAGES)) <= 2:  # noqa: ASYNC110 - another's
                await asyncio.sleep(0.02)
        undisturbed = await client.generate(PROMPT, **OPTIONS)
        stream = client.stream(PROMPT, **OPTIONS)
        drawn: list[int] = []
        async for delta in stream:
            drawn.extend(delta.token_ids)
            if broker.stats().num_connections and len(drawn) >= NUM_TOKENS // 10:
                await broker.stop()
                assert len(drawn) < NUM_TOKENS
        assert broker.stats().num_connections == 0
        assert drawn == list(undisturbed.token_ids)
        assert (await stream.result()).num_attempts == 1
        again = await client.generate(PROMPT, **(OPTIONS | {"max_tokens": 8}))
        assert again.token_ids == undisturbed.token_ids[:8]
        serving = figures(await network.metrics(), "plait_nodes", state="serving")
        assert serving == [len(network.nodes)]
