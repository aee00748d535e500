"""Streams that break and go on: on the same gateway, on its successor, and a stop that says so."""

import dataclasses
import json
from typing import Any

import pytest

from coordinator.core import events as ev
from coordinator.core.state import Limits
from coordinator.gateway.door_codec import order_from_proto
from coordinator.gateway.happenings import Accepted
from coordinator.gateway.order import Order, PromptIds
from coordinator.gateway.reader import EPOCH_MAX, EPOCHS_APART, Reader, Resume
from plait.errors import InvalidRequestError, UnavailableError
from plait.types import RequestId
from plait.wire.v1 import common_pb2, data_pb2, gateway_pb2
from tests.kit.gateway_rig import make_gateway, open_doors, open_gateway
from tests.kit.scripted_network import FIRST, LAST, ScriptedNetwork

BODY: dict[str, Any] = {"model": "tiny", "prompt": "hi", "max_tokens": 12, "stream": True}
URL = "/v1/completions"


def pieces_of(events: list[str]) -> str:
    """The text of an answer's events."""
    found = [line.removeprefix("data: ") for line in events if line.startswith("data: {")]
    return "".join(json.loads(each)["choices"][0]["text"] for each in found)


async def test_an_openai_client_goes_on_behind_the_last_event_it_has() -> None:
    network = ScriptedNetwork()
    async with (
        open_gateway(network) as rig,
        rig.http() as client,
    ):
        whole = (await client.post(URL, json=BODY)).text
        ids = [line.removeprefix("id: ") for line in whole.splitlines() if line.startswith("id: ")]
        network.pause_after = 5
        had: list[str] = []
        async with client.stream("POST", URL, json={**BODY, "seed": 3}) as answer:
            async for line in answer.aiter_lines():
                had.append(line)
                if sum(each.startswith("data: ") for each in had) == 4:
                    break
        last_id = [line.removeprefix("id: ") for line in had if line.startswith("id: ")][-1]
        await network.wait_for(lambda: bool(network.of(ev.RequestCancelled)))
        network.pause_after = None
        rest = await client.post(URL, json={**BODY, "seed": 3}, headers={"last-event-id": last_id})
        again = (await client.post(URL, json={**BODY, "seed": 3})).text
    assert len(ids) == 13 and ids[0].endswith(":1")
    assert pieces_of(had) + pieces_of(rest.text.splitlines()) == pieces_of(again.splitlines())
    assert len(pieces_of(again.splitlines())) == 12
    assert rest.text.rstrip().endswith("[DONE]")
    later = [line for line in rest.text.splitlines() if line.startswith("id: ")]
    assert later and all(line.endswith(f":{EPOCHS_APART}") for line in later)


async def test_every_return_begins_above_all_attempts_that_may_have_been_made_before() -> None:
    """A coordinator that tried in vain for a client that came back is gone too: what it told the
    client when it accepted the request is all that the client knows."""
    attempts_max = Limits().attempts_max
    known = 1
    newest = known + attempts_max  # that the first coordinator may have come to
    for _ in range(3):
        network = ScriptedNetwork(pause_after=0)
        rig = make_gateway(network)
        network.attach()
        order = dataclasses.replace(ORDER, resume=Resume(epoch=known))
        reader = await rig.gateway.generator.start(order, key_id="k")
        accepted = reader.poll()
        assert isinstance(accepted, Accepted)
        (submitted,) = network.of(ev.RequestSubmitted)
        assert isinstance(submitted, ev.RequestSubmitted) and submitted.resumes_epoch == known
        first = known + attempts_max + 1
        assert first > newest
        newest, known = first + attempts_max - 1, accepted.epoch
        assert known >= newest
        await network.stop()


def test_an_epoch_that_no_request_can_have_come_to_is_refused() -> None:
    """It would not fit in any ticket."""
    resume = gateway_pb2.Resume(epoch=EPOCH_MAX + 1)
    with pytest.raises(InvalidRequestError) as caught:
        order_from_proto(gateway_pb2.GenerateRequest(prompt="hi", resume=resume))
    assert caught.value.param == "resume.epoch"


async def test_ids_that_are_none_of_ours_and_streams_of_many_are_refused() -> None:
    async with (
        open_gateway(ScriptedNetwork()) as rig,
        rig.http() as client,
    ):
        for body, last_id in ((BODY, "no id"), ({**BODY, "n": 2}, "abc:1")):
            answer = await client.post(URL, json=body, headers={"last-event-id": last_id})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "Last-Event-ID"


async def test_a_gateway_that_stops_ends_every_stream_with_an_error_event() -> None:
    network = ScriptedNetwork(pause_after=3)
    async with (
        open_gateway(network) as rig,
        rig.http() as client,
        client.stream("POST", URL, json=BODY) as answer,
    ):
        lines: list[str] = []
        async for line in answer.aiter_lines():
            lines.append(line)
            if sum(each.startswith("data: ") for each in lines) == 3 and len(lines) < 12:
                rig.gateway.stop()
        refused = await client.post(URL, json=BODY)
    error = json.loads([line for line in lines if line.startswith("data: ")][-1][6:])["error"]
    assert error["code"] == "coordinator_stopping"
    assert refused.status_code == 503
    assert not network.of(ev.RequestCancelled), "what nodes run goes on"
    assert not network.closed


async def test_the_sdk_is_told_of_a_stop_as_of_a_loss() -> None:
    network = ScriptedNetwork(pause_after=2)
    async with open_doors(network) as rig, rig.async_client(timeout_s=0.5) as client:
        stream = client.stream("hi", max_tokens=9)
        await anext(stream)
        rig.gateway.stop()
        with pytest.raises(UnavailableError) as stopped:
            await stream.result()
        assert stopped.value.code == "coordinator_stopping"


async def drain(reader: Reader) -> list[int]:
    """Token ids of all pieces so far."""
    ids: list[int] = []
    while (happening := reader.poll()) is not None:
        ids += [token.token_id for token in getattr(happening, "tokens", ())]
    return ids


def kept(start: data_pb2.StartRequest, ids: list[int], **more: Any) -> data_pb2.KeptRoute:
    """What the last stage of that route says to a gateway that is new."""
    at = start.open.prompt_tokens
    tokens = [
        data_pb2.SampledToken(request_id="r", epoch=1, position=at + i, token_id=token_id)
        for i, token_id in enumerate(ids)
    ]
    return data_pb2.KeptRoute(
        ticket=start.open.ticket, position=at, tokens=tokens, **{"is_running": True, **more}
    )


def found(network: ScriptedNetwork) -> list[ev.RouteFound]:
    """What the core was told of routes that nodes run."""
    return [event for event in network.events if isinstance(event, ev.RouteFound)]


ORDER = Order(prompt=PromptIds((1, 2)), max_tokens=8, request_id="r", seed=1)


async def begun() -> data_pb2.StartRequest:
    """A request that an earlier gateway has sent to its nodes."""
    network = ScriptedNetwork(pause_after=0)
    rig = make_gateway(network)
    network.attach()
    await rig.gateway.generator.start(ORDER, key_id="k")
    await network.wait_for(lambda: bool(network.starts))
    await network.stop()
    return network.starts[0]


async def come_back(
    network: ScriptedNetwork, message: data_pb2.KeptRoute, *, node_first: bool, key_id: str = "k"
) -> Reader:
    """A new gateway hears of the route, and its client asks again."""
    rig = make_gateway(network)
    network.attach()
    relay = rig.gateway.relay
    if node_first:
        relay.receive(LAST, data_pb2.NodeToGateway(kept=message))
    order = Order(
        prompt=ORDER.prompt,
        max_tokens=8,
        request_id="r",
        seed=1,
        resume=Resume(epoch=1, token_ids=(60, 61), num_deltas=2),
    )
    reader = await rig.gateway.generator.start(order, key_id=key_id)
    if not node_first:
        relay.receive(LAST, data_pb2.NodeToGateway(kept=message))
    return reader


@pytest.mark.parametrize("node_first", [True, False])
async def test_a_new_gateway_goes_on_with_what_nodes_run(node_first: bool) -> None:
    start = await begun()
    network = ScriptedNetwork(is_holding=True)
    said = kept(start, [60, 61, 62, 63], cached_tokens=1)
    reader = await come_back(network, said, node_first=node_first)
    assert [(each.epoch, each.is_running) for each in found(network)] == [(1, True)]
    assert await drain(reader) == [62, 63]
    assert network.relay is not None
    more = data_pb2.SampledToken(
        request_id="r",
        epoch=1,
        position=start.open.prompt_tokens + 4,
        token_id=64,
        finish_reason=common_pb2.FINISH_REASON_LENGTH,
    )
    network.relay.receive(LAST, data_pb2.NodeToGateway(token=more))
    assert await drain(reader) == [64]
    assert network.of(ev.LastTokenSent)
    assert reader.generation.cached_tokens == 1, "as it was told before the restart"
    await network.stop()


async def test_what_was_drawn_while_nobody_listened_is_not_lost() -> None:
    start = await begun()
    network = ScriptedNetwork(is_holding=True)
    ids = list(range(60, 68))
    reader = await come_back(network, kept(start, ids, is_running=False), node_first=True)
    assert await drain(reader) == ids[2:]
    ended = [event for event in network.events if isinstance(event, ev.LastTokenSent)]
    assert [event.num_generated for event in ended] == [8]
    await network.stop()


async def test_a_route_of_another_key_or_without_our_signature_is_not_taken_over() -> None:
    start = await begun()
    network = ScriptedNetwork(is_holding=True)
    reader = await come_back(network, kept(start, [60, 61, 62]), node_first=True, key_id="other")
    assert [each.is_running for each in found(network)] == [False]
    assert await drain(reader) == []
    await network.stop()

    forged = kept(start, [60, 61, 62])
    forged.ticket.signature = b"forged"
    network = ScriptedNetwork(is_holding=True)
    await come_back(network, forged, node_first=False)
    assert not found(network)
    assert network.relay is not None and network.relay.dropped["bad_ticket"] == 1
    await network.stop()


async def test_a_stage_that_holds_an_ended_request_is_told_to_let_go() -> None:
    network = ScriptedNetwork()
    rig = make_gateway(network)
    network.attach()
    reader = await rig.gateway.generator.start(ORDER, key_id="k")
    await network.wait_for(lambda: reader.generation.finished is not None)
    num_closed = len(network.closed)
    message = data_pb2.KeptRoute(ticket=network.starts[0].open.ticket, is_running=True)
    rig.gateway.relay.receive(FIRST, data_pb2.NodeToGateway(kept=message))
    await network.wait_for(lambda: len(network.closed) > num_closed)
    assert network.closed[-1].request_id == RequestId("r")
    await network.stop()
