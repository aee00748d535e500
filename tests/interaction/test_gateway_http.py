"""The HTTP door's edges: keys, bodies, missing pages, clients that leave or do not read."""

import asyncio
import contextlib
import json
from typing import Any

import httpx
import openai
import pytest

from coordinator.core import events as ev
from coordinator.gateway.generate import GenerateLimits
from coordinator.gateway.limits import DoorLimits
from coordinator.ports import KeyLimits
from plait.types import Reason
from tests.kit.gateway_rig import BEARER, GatewayRig, open_gateway
from tests.kit.scripted_network import API_KEY, ScriptedNetwork, says

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def http(rig: GatewayRig, **headers: str) -> httpx.AsyncClient:
    return rig.http({**BEARER, **headers})


async def test_errors_are_openai_objects() -> None:
    async with open_gateway(ScriptedNetwork()) as rig, http(rig) as client:
        unknown = await client.post(CHAT, json={**BODY, "model": "gpt"})
        missing = await client.get("/v1/nothing")
        embeddings = await client.post("/v1/embeddings", json={"model": "tiny", "input": "x"})
        method = await client.get(CHAT)
        model = await client.get("/v1/models/gpt")
        keyless = await client.post(CHAT, json=BODY, headers={"authorization": ""})
        wrong = await client.post(CHAT, json=BODY, headers={"authorization": "Bearer no"})
        basic = await client.post(CHAT, json=BODY, headers={"authorization": "Basic xyz"})
    for answer, status, code in (
        (unknown, 404, "model_not_found"),
        (missing, 404, "not_found"),
        (embeddings, 404, "not_offered"),
        (method, 405, "invalid_request"),
        (model, 404, "model_not_found"),
        (keyless, 401, "missing_api_key"),
        (wrong, 401, "invalid_api_key"),
        (basic, 401, "invalid_api_key"),
    ):
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.json()["error"]["code"] == code
    assert "served: tiny" in unknown.json()["error"]["message"]
    assert "offers no embeddings" in embeddings.json()["error"]["message"]
    assert keyless.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b"", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'{"model": "tiny", "model": "tiny"}', "invalid_json"),
        (b'{"model": "\xff"}', "invalid_utf8"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"n": ' + b"9" * 5000 + b"}", "invalid_json"),
    ],
)
async def test_bodies_that_are_no_json(body: bytes, code: str) -> None:
    async with open_gateway(ScriptedNetwork()) as rig, http(rig) as client:
        answer = await client.post(CHAT, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == code


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"temperature": NaN}', "temperature"),
        (b'{"model": "tiny", "temperature": -Infinity, "top_p": NaN}', "temperature"),
        (b'{"seed": 1e999}', "seed"),
        (b'{"logit_bias": {"5": Infinity}}', "logit_bias.5"),
        (b'{"messages": [{"role": "user"}, {"content": [1.5, NaN]}]}', "messages[1].content[1]"),
        (b'{"model": "tiny", "model": "tiny"}', "model"),
        (b'{"x": ' + b"[" * 900 + b"NaN" + b"]" * 900 + b"}", ("x" + "[0]" * 900)[:200]),
    ],
)
async def test_what_json_cannot_say_is_named_by_its_path(body: bytes, param: str) -> None:
    async with open_gateway(ScriptedNetwork()) as rig, http(rig) as client:
        answer = await client.post(CHAT, content=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert param in error["message"]


async def test_no_depth_of_nesting_is_a_fault_of_ours() -> None:
    """Near the parser's own limit, what a message says of a value must not fail on it."""
    async with open_gateway(ScriptedNetwork()) as rig, http(rig) as client:
        for depth in range(850, 1_000):
            value = b"[" * depth + b"]" * depth
            body = b'{"model": "tiny", "prompt": "x", "temperature": ' + value + b"}"
            answer = await client.post("/v1/completions", content=body)
            assert answer.status_code == 400, depth


async def test_a_client_that_leaves_within_its_body_is_no_fault_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_gateway(ScriptedNetwork()) as rig, http(rig) as client:
        for _ in range(3):
            _, writer = await connect(rig)
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\n"
            writer.write(f"{head}content-length: 10\r\n\r\n{{".encode())
            await writer.drain()
            assert (await client.get("/health")).status_code == 200  # the head has been read
            writer.transport.abort()
        assert (await client.get("/health")).status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_body_above_the_limit_and_one_that_never_ends() -> None:
    door = DoorLimits(body_bytes_max=1000, body_s=0.2)
    async with open_gateway(ScriptedNetwork(), door=door) as rig, http(rig) as client:
        large = await client.post(CHAT, content=b" " * 1001)
        assert large.status_code == 413
        reader, writer = await connect(rig)
        writer.write(head(CHAT, 500) + b'{"mod')
        await writer.drain()
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 408")
        writer.close()


async def test_models_health_and_ready() -> None:
    async with open_gateway(ScriptedNetwork()) as rig, http(rig) as client:
        listed = (await client.get("/v1/models")).json()
        one = (await client.get("/v1/models/tiny")).json()
        assert (await client.get("/health", headers={"authorization": ""})).status_code == 200
        assert (await client.get("/ready")).status_code == 200
        rig.views.is_ready = False
        waiting = await client.get("/ready")
    assert listed == {"object": "list", "data": [one]}
    assert one["id"] == "tiny"
    assert one["object"] == "model"
    assert waiting.status_code == 503
    assert waiting.json()["models"][0]["missing_layers"] == [[2, 4]]


async def test_full_and_busy_are_429_and_a_queue_that_never_moves_503() -> None:
    network = ScriptedNetwork(is_full=True)
    limits = GenerateLimits(silence_s=0.1)
    door = DoorLimits(keepalive_s=0.05, headers_hold_s=5)
    async with open_gateway(network, generate=limits, door=door) as rig, http(rig) as client:
        busy = await client.post(CHAT, json=BODY)
        network.is_full = False
        network.refusal = Reason(code="queue_full", message="256 requests wait already")
        full = await client.post(CHAT, json=BODY)
        network.refusal, network.is_holding = None, True
        silent = await client.post(CHAT, json=BODY)
    assert [answer.status_code for answer in (busy, full, silent)] == [429, 429, 503]
    assert busy.headers["retry-after"] == full.headers["retry-after"] == "1"
    assert silent.headers["retry-after"] == "5"
    assert silent.json()["error"]["code"] == "silence"
    assert rig.gateway.relay.num_generations == 0


async def test_a_key_that_has_used_its_minute_is_told_when_to_come_again() -> None:
    async with open_gateway(ScriptedNetwork()) as rig, http(rig) as client:
        await rig.keys.limit_key("k1", KeyLimits(requests_per_min=1, models=("tiny",)))
        assert (await client.post(CHAT, json=BODY)).status_code == 200
        refused = await client.post(CHAT, json=BODY)
        await rig.keys.limit_key("k1", KeyLimits(tokens_per_min=100))
        too_large = await client.post(CHAT, json={**BODY, "max_tokens": 1000})
        await rig.keys.limit_key("k1", KeyLimits(models=("other",)))
        foreign = await client.post(CHAT, json=BODY)
        assert (await client.get("/v1/models")).json()["data"] == []
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert refused.json()["error"]["code"] == "rate_limited"
    assert too_large.status_code == 400
    assert too_large.json()["error"]["code"] == "over_key_limit"
    assert foreign.status_code == 404
    assert foreign.json()["error"]["code"] == "model_not_allowed"


async def test_a_stream_that_waits_long_is_kept_alive_by_comments() -> None:
    network = ScriptedNetwork(is_holding=True)
    door = DoorLimits(headers_hold_s=0.05, keepalive_s=0.05)
    async with (
        open_gateway(network, door=door) as rig,
        http(rig) as client,
        client.stream("POST", CHAT, json={**BODY, "stream": True}) as answer,
    ):
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith(": ")
        submitted = network.of(ev.RequestSubmitted)[0]
        assert isinstance(submitted, ev.RequestSubmitted)
        network.script = says("late")
        network.open(submitted.request_id, 1)
        rest = [line async for line in lines if line.startswith("data: ")]
    assert rest[-1] == "data: [DONE]"
    text = "".join(
        json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in rest[:-1]
    )
    assert text == "late"


async def test_a_failure_in_mid_stream_is_an_event() -> None:
    network = ScriptedNetwork(pause_after=2, attempts_max=1)
    async with open_gateway(network) as rig:
        stream = await rig.openai().chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x"}], stream=True
        )
        got: list[str] = []
        with pytest.raises(openai.APIError, match="lost its wits"):
            async for chunk in stream:
                got.append(chunk.choices[0].delta.content or "")
                if len("".join(got)) == 2:
                    network.break_first("lost its wits")
        assert len("".join(got)) == 2


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_cancels_at_once(is_stream: bool) -> None:
    network = ScriptedNetwork(pause_after=2)
    async with open_gateway(network) as rig:
        _, writer = await connect(rig)
        body = json.dumps({**BODY, "stream": is_stream, "n": 2}).encode()
        writer.write(head(CHAT, len(body)) + body)
        await network.wait_for(lambda: len(network.of(ev.FirstTokenSent)) == 2)
        writer.transport.abort()
        await network.wait_for(lambda: len(network.of(ev.RequestCancelled)) == 2, limit_s=1.0)
        await network.wait_for(lambda: rig.gateway.generator.num_running == 0)
        await network.wait_for(lambda: rig.gateway.relay.num_generations == 0)


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_dropped() -> None:
    network = ScriptedNetwork(lambda start: [97] * start.open.max_new_tokens)
    door = DoorLimits(stall_s=0.3)
    generate = GenerateLimits()
    async with open_gateway(
        network, door=door, generate=generate, context_tokens_max=1 << 20
    ) as rig:
        reader, writer = await connect(rig, limit=1024)
        body = {**BODY, "stream": True, "logprobs": True, "top_logprobs": 20, "max_tokens": 20_000}
        payload = json.dumps(body).encode()
        writer.write(head(CHAT, len(payload)) + payload)
        await network.wait_for(
            lambda: bool(network.of(ev.RequestCancelled) or network.of(ev.LastTokenSent)),
            limit_s=20,
        )
        await network.wait_for(lambda: rig.gateway.generator.num_running == 0)
        assert network.of(ev.RequestCancelled)
        writer.close()
        del reader


async def test_completions_take_strings_lists_and_ids() -> None:
    network = ScriptedNetwork(lambda start: list(reversed(start.prompt_token_ids)))
    async with open_gateway(network) as rig, http(rig) as client:

        async def texts(prompt: object, **more: object) -> list[str]:
            answer = await client.post(
                "/v1/completions",
                json={"model": "tiny", "prompt": prompt, "max_tokens": 3, **more},
            )
            assert answer.status_code == 200, answer.text
            return [choice["text"] for choice in answer.json()["choices"]]

        assert await texts("abc") == ["cba"]
        assert await texts(["abc", "xyz"]) == ["cba", "zyx"]
        assert await texts([97, 98, 99]) == ["cba"]
        assert await texts([[97, 98, 99], [120]], n=2) == ["cba", "cba", "x", "x"]
        scored = await client.post(
            "/v1/completions",
            json={"model": "tiny", "prompt": "abc", "max_tokens": 3, "logprobs": 1},
        )
        logprobs = scored.json()["choices"][0]["logprobs"]
        assert logprobs["tokens"] == ["c", "b", "a"]
        assert logprobs["text_offset"] == [0, 1, 2]
        assert logprobs["top_logprobs"][0] == {"a": -0.5}
        wrong: tuple[object, ...] = (
            "",
            [],
            [[]],
            [1, "a"],
            ["a", 1],
            [-1],
            [999],
            {"a": 1},
            ["a"] * 17,
        )
        for bad in wrong:
            answer = await client.post("/v1/completions", json={"model": "tiny", "prompt": bad})
            assert answer.status_code == 400, bad
        async with client.stream(
            "POST",
            "/v1/completions",
            json={"model": "tiny", "prompt": "abc", "stream": True, "max_tokens": 3},
        ) as answer:
            lines = [line async for line in answer.aiter_lines() if line.startswith("data: {")]
        assert "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines) == "cba"
        assert json.loads(lines[0][6:])["object"] == "text_completion"


async def connect(
    rig: GatewayRig, limit: int = 1 << 16
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = rig.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port), limit=limit)


def head(path: str, length: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


async def test_a_head_that_trickles_is_cut_off() -> None:
    door = DoorLimits(head_s=0.3)
    async with open_gateway(ScriptedNetwork(), door=door) as rig:
        reader, writer = await connect(rig)
        ended = asyncio.ensure_future(reader.read())
        for byte in b"GET /health HTTP/1.1\r\nhost: x\r\nx-slow: " + b"a" * 1000:
            if ended.done():
                break
            writer.write(bytes([byte]))
            await asyncio.wait({ended}, timeout=0.02)
        assert ended.done()
        writer.close()


async def test_an_answer_may_take_longer_than_a_head() -> None:
    network = ScriptedNetwork(pause_after=2)
    door = DoorLimits(head_s=0.1, keepalive_s=0.3)
    async with (
        open_gateway(network, door=door) as rig,
        http(rig) as client,
        client.stream("POST", CHAT, json={**BODY, "stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        async for line in lines:  # 0.3 s of silence behind the first two tokens
            if line.startswith(": "):
                break
        network.go.set()
        assert [line async for line in lines if line][-1] == "data: [DONE]"


async def test_one_address_may_open_so_many_connections() -> None:
    door = DoorLimits(connections_per_address_max=2)
    async with open_gateway(ScriptedNetwork(), door=door) as rig:
        kept = [await connect(rig) for _ in range(2)]
        reader, writer = await connect(rig)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        for _, other in [*kept, (reader, writer)]:
            other.close()
        async with http(rig) as client:
            for _ in range(100):
                try:
                    answer = await client.get("/health")
                except httpx.TransportError:
                    continue
                break
            assert answer.status_code == 200


async def test_web_sockets_give_their_places_back() -> None:
    door = DoorLimits(connections_per_address_max=2, head_s=0.2)
    upgrade = (
        b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with open_gateway(ScriptedNetwork(), door=door) as rig:
        for _ in range(4):
            reader, writer = await connect(rig)
            writer.write(upgrade)
            assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 4")
            writer.close()
        async with http(rig) as client:
            assert (await client.get("/health")).status_code == 200
