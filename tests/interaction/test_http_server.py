"""The HTTP door closes at once where nobody stands, and lets those who are answered have it all."""

import asyncio
import time

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from coordinator.shell.servers import TICK_S, bind, http_server
from tests.kit.gateway_rig import NO_TLS

NUM_DOORS = 5


async def test_an_empty_door_closes_at_once() -> None:
    took_s = 0.0
    for _ in range(NUM_DOORS):
        async with http_server(Starlette(), bind("127.0.0.1", 0, flag="--http")):
            await asyncio.sleep(0)
            began_s = time.perf_counter()
        took_s += time.perf_counter() - began_s
    assert took_s < NUM_DOORS * TICK_S / 2


async def test_who_is_being_answered_when_the_door_closes_gets_the_answer() -> None:
    is_asked, is_closing, is_answered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(_: Request) -> PlainTextResponse:
        is_asked.set()
        await is_closing.wait()
        await asyncio.sleep(0.05)
        is_answered.set()
        return PlainTextResponse("whole")

    bound = bind("127.0.0.1", 0, flag="--http")
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    async with httpx.AsyncClient(verify=NO_TLS, timeout=20.0) as client:
        async with http_server(Starlette(routes=[Route("/", answer)]), bound):
            asked = asyncio.create_task(client.get(url))
            await is_asked.wait()
            is_closing.set()
        assert is_answered.is_set()
        assert (await asked).text == "whole"
