"""Whose a request is and how urgent, from both doors to the core; and what a client that waits is
told."""

import asyncio
from typing import Any

import openai
import pytest

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.gateway.limits import DoorLimits
from plait.types import Reason, RequestId
from scheduler.selection.fairness import SloClass
from tests.kit.gateway_rig import open_doors, open_gateway
from tests.kit.scripted_network import ScriptedNetwork, says

MESSAGES: Any = [{"role": "user", "content": "a prompt that is longer than one block of tokens"}]


def submitted(network: ScriptedNetwork) -> list[ev.RequestSubmitted]:
    return [event for event in network.events if isinstance(event, ev.RequestSubmitted)]


@pytest.mark.parametrize(
    ("asked", "told", "slo"),
    [
        (None, "default", SloClass.INTERACTIVE),
        ("auto", "default", SloClass.INTERACTIVE),
        ("default", "default", SloClass.INTERACTIVE),
        ("flex", "flex", SloClass.BATCH),
    ],
)
async def test_http_tiers_become_classes_and_come_back(
    asked: Any, told: str, slo: SloClass
) -> None:
    network = ScriptedNetwork(says("hello"))
    async with open_gateway(network) as rig, rig.openai() as client:
        answer = await client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            service_tier=asked,
        )
        assert answer.service_tier == told
        stream: Any = await client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            service_tier=asked,
            stream=True,
        )
        assert {chunk.service_tier async for chunk in stream} == {told}
    first, second = submitted(network)
    assert first.slo is second.slo is slo
    assert first.key_id == second.key_id == "k1"
    assert first.prefix_blocks == second.prefix_blocks != ()


async def test_other_tiers_are_refused_by_name() -> None:
    network = ScriptedNetwork(says("hello"))
    async with open_gateway(network) as rig, rig.openai() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model="tiny",
                messages=MESSAGES,
                service_tier="priority",
            )
    assert caught.value.param == "service_tier" and "'priority'" in caught.value.message
    assert submitted(network) == []


async def test_the_sdks_tier_and_key_reach_the_core() -> None:
    network = ScriptedNetwork(says("hello"))
    async with open_doors(network) as rig, rig.async_client() as client:
        completion = await client.generate("a prompt of some length", service_tier="flex")
        assert completion.service_tier == "flex"
        assert (await client.generate("another prompt")).service_tier == "default"
    first, second = submitted(network)
    assert (first.slo, first.key_id) == (SloClass.BATCH, "k1")
    assert (second.slo, second.key_id) == (SloClass.INTERACTIVE, "k1")


async def test_who_waits_hears_in_the_event_stream_where_and_how_long() -> None:
    network = ScriptedNetwork(says("hello"), is_holding=True)
    door = DoorLimits(headers_hold_s=0.01, keepalive_s=5.0)
    async with (
        open_gateway(network, door=door) as rig,
        rig.http() as client,
    ):
        body = {"model": "tiny", "messages": MESSAGES, "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = (line async for line in answer.aiter_lines() if line)
            assert await anext(lines) == ": queued position=1 reason=kv_full"
            request_id = RequestId(submitted(network)[0].request_id)
            assert network.relay is not None
            network.relay.perform_request(
                fx.NotifyQueued(
                    request_id=request_id,
                    position=2,
                    reason=Reason(code="kv_full", message="all KV is in use"),
                    wait_ms=2_600,
                )
            )
            assert await anext(lines) == ": queued position=2 wait_s=3 reason=kv_full"
            network.open(request_id, 1)
            assert [line async for line in lines][-1] == "data: [DONE]"


async def test_who_waits_hears_it_from_the_sdk() -> None:
    network = ScriptedNetwork(says("hello"), is_holding=True)
    async with open_doors(network) as rig, rig.async_client() as client:

        async def answer() -> None:
            await network.wait_for(lambda: stream.waiting is not None)
            request_id = submitted(network)[0].request_id
            assert network.relay is not None
            reason = Reason(code="kv_full", message="all KV is in use")
            network.relay.perform_request(
                fx.NotifyQueued(request_id=request_id, position=2, reason=reason, wait_ms=2_600)
            )
            await network.wait_for(
                lambda: stream.waiting is not None and stream.waiting.position == 2
            )
            assert stream.waiting is not None and stream.waiting.wait_ms == 2_600
            network.open(request_id, 1)

        async with client.stream("a prompt") as stream, asyncio.TaskGroup() as tasks:
            tasks.create_task(answer())
            text = "".join([str(delta) async for delta in stream])
        assert text == "hello"
