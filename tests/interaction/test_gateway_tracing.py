"""A client's trace context reaches its generation through every door; nonsense does not."""

import asyncio

import pytest

from coordinator.core import events as ev
from plait.errors import InvalidRequestError
from plait.wire.trace_context import TraceParent
from tests.kit.gateway_rig import GatewayRig, open_doors, open_gateway
from tests.kit.scripted_network import API_KEY, ScriptedNetwork

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
BODY = {"model": "tiny", "prompt": "hi", "stream": True, "max_tokens": 4}


async def trace_of(rig: GatewayRig, network: ScriptedNetwork, request_at: int) -> object:
    """What the generation behind the n-th request that began has been told."""
    await network.wait_for(lambda: len(network.starts) > request_at)
    submitted = network.of(ev.RequestSubmitted)[request_at]
    assert isinstance(submitted, ev.RequestSubmitted)
    generation = rig.gateway.relay.generation(submitted.request_id)
    assert generation is not None
    return generation.trace


async def test_http_headers() -> None:
    network = ScriptedNetwork(pause_after=1)
    given: tuple[tuple[dict[str, str], TraceParent | None], ...] = (
        ({"traceparent": PARENT, "tracestate": "a=1"}, TraceParent(PARENT, "a=1")),
        ({"traceparent": PARENT, "tracestate": "x" * 600}, TraceParent(PARENT)),
        ({"traceparent": "00-" + "0" * 32 + PARENT[35:]}, None),
        ({"traceparent": PARENT + "-more"}, None),
        ({}, None),
    )
    async with open_gateway(network) as rig:
        headers = {"authorization": f"Bearer {API_KEY}"}
        async with rig.http(headers, timeout_s=20.0) as client:
            for at, (more, expected) in enumerate(given):
                async with client.stream("POST", "/v1/completions", json=BODY, headers=more):
                    assert await trace_of(rig, network, at) == expected


async def test_both_clients_of_the_sdk() -> None:
    network = ScriptedNetwork(pause_after=1)
    async with open_doors(network) as rig, rig.async_client() as client:
        stream = client.stream("hi", traceparent=PARENT)
        reading = asyncio.ensure_future(anext(stream))
        assert await trace_of(rig, network, 0) == TraceParent(PARENT)
        await reading
        stream.close()
        with rig.client() as blocking:
            other = blocking.stream("hi", traceparent=PARENT)
            assert await trace_of(rig, network, 1) == TraceParent(PARENT)
            other.close()
            with pytest.raises(InvalidRequestError, match="W3C Trace Context"):
                blocking.stream("hi", traceparent="mine")
