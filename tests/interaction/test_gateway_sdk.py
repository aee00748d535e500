"""plait.Client and plait.AsyncClient over TLS against the gRPC door."""

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import grpc
import pytest
from grpc import aio

from coordinator.core import events as ev
from coordinator.gateway.generate import GenerateLimits
from coordinator.gateway.limits import DoorLimits
from coordinator.ports import KeyLimits
from plait.crypto.certificates import COORDINATOR_NAME
from plait.errors import (
    AuthenticationError,
    CancelledByClientError,
    DeadlineError,
    InvalidRequestError,
    ModelError,
    OverloadedError,
    UnavailableError,
)
from plait.sdk import AsyncClient
from plait.types import FinishReason, LayerSpan, Reason
from plait.wire.v1 import gateway_pb2, gateway_pb2_grpc
from tests.kit.gateway_rig import GatewayRig, open_doors
from tests.kit.scripted_network import API_KEY, FIRST, ScriptedNetwork, says

ASK = [{"role": "user", "content": "Why is the sky blue?"}]


async def test_both_clients_answer_alike() -> None:
    network = ScriptedNetwork(says("Rayleigh. 🦊"), cached_tokens=16)
    async with open_doors(network) as rig:
        async with rig.async_client() as client:
            answer = await client.chat(ASK)
        with rig.client() as blocking:
            same = await asyncio.to_thread(blocking.chat, ASK)
    assert str(answer) == same.text == "Rayleigh. 🦊"
    assert answer.finish_reason is FinishReason.STOP
    assert answer.completion_tokens == same.completion_tokens == 15
    assert answer.prompt_tokens == len("<user>Why is the sky blue?<assistant>")
    assert answer.cached_tokens == same.cached_tokens == 16
    assert [hop.node_id for hop in answer.route] == ["nfirst", "nlast"]
    assert answer.route[1].span == LayerSpan(2, 4)
    assert answer.model == "tiny"
    assert answer.num_attempts == 1


async def test_a_stream_gives_deltas_then_the_result() -> None:
    async with (
        open_doors(ScriptedNetwork(says("a🦊b"))) as rig,
        rig.async_client() as client,
        client.stream("Once", top_logprobs=2) as stream,
    ):
        deltas = [delta async for delta in stream]
        result = await stream.result()
    assert "".join(map(str, deltas)) == result.text == "a🦊b"
    assert result.token_ids == (*"a🦊b".encode(), 256)
    assert result.scores[0].text == "a"
    assert [top.token_id for top in result.scores[0].top] == [97, 98]


async def test_closing_a_stream_cancels_the_generation() -> None:
    network = ScriptedNetwork(pause_after=3)
    async with open_doors(network) as rig, rig.async_client() as client:
        async with client.stream("Once", max_tokens=50) as stream:
            await anext(stream)
        await network.wait_for(lambda: bool(network.of(ev.RequestCancelled)))
        await network.wait_for(lambda: len(network.closed) == 2)
        with pytest.raises(CancelledByClientError):
            await stream.result()
        assert rig.gateway.generator.num_running == 0


async def test_closing_the_blocking_stream_cancels_too() -> None:
    network = ScriptedNetwork(pause_after=3)

    async with open_doors(network) as rig:
        with rig.client() as client:

            def read_one() -> str:
                with client.stream("Once", max_tokens=50) as stream:
                    return next(stream).text

            assert len(await asyncio.to_thread(read_one)) == 1
        await network.wait_for(lambda: bool(network.of(ev.RequestCancelled)))


async def test_the_same_request_id_attaches_and_another_request_is_refused() -> None:
    network = ScriptedNetwork(pause_after=4)
    async with open_doors(network) as rig, rig.async_client() as client:
        first = client.stream("Once", request_id="mine", max_tokens=8)
        await anext(first)
        second = client.stream("Once", request_id="mine", max_tokens=8)
        await anext(second)
        with pytest.raises(InvalidRequestError) as caught:
            await client.generate("Twice", request_id="mine", max_tokens=8)
        assert caught.value.param == "request_id"
        assert caught.value.code == "request_id_in_use"
        first.close()
        network.go.set()
        whole = await second.result()
        assert whole.completion_tokens == 8
        late = await client.generate("Once", request_id="mine", max_tokens=8)
    assert late.text == whole.text
    assert len(network.of(ev.RequestSubmitted)) == 1
    assert not network.of(ev.RequestCancelled)


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (Reason(code="span_unavailable", message="layers 2-3 are missing"), UnavailableError),
        (Reason(code="queue_full", message="256 requests wait already"), OverloadedError),
        (Reason(code="deadline_exceeded", message="too long"), DeadlineError),
        (Reason(code="request_too_large", message="shorten it"), InvalidRequestError),
        (Reason(code="node_lost", message="gave up after 3 chains"), UnavailableError),
    ],
)
async def test_refusals_are_typed(refusal: Reason, kind: type[Exception]) -> None:
    network = ScriptedNetwork(refusal=refusal)
    async with open_doors(network) as rig, rig.async_client() as client:
        with pytest.raises(kind, match=refusal.message) as caught:
            await client.chat(ASK)
    assert getattr(caught.value, "code", None) == refusal.code


async def test_bad_requests_name_the_parameter() -> None:
    async with open_doors(ScriptedNetwork()) as rig, rig.async_client() as client:

        async def param_of(**options: object) -> str | None:
            with pytest.raises(InvalidRequestError) as caught:
                await client.generate("x", **options)  # type: ignore[arg-type]
            return caught.value.param

        assert await param_of(temperature=float("nan")) == "temperature"
        assert await param_of(temperature=3.0) == "temperature"
        assert await param_of(max_tokens=0) == "max_tokens"
        assert await param_of(max_tokens=-1) == "max_tokens"
        assert await param_of(max_tokens=10**6) == "max_tokens"
        assert await param_of(max_tokens=10**12) == "max_tokens"
        assert await param_of(top_p=0.0) == "top_p"
        assert await param_of(top_logprobs=21) == "top_logprobs"
        assert await param_of(stop=[""]) == "stop"
        assert await param_of(stop=["a"] * 17) == "stop"
        assert await param_of(request_id="no spaces") == "request_id"
        assert await param_of(colour="blue") == "colour"
        for prompt, param in [("", "prompt"), ([300], "prompt"), ("\ud800", "prompt")]:
            with pytest.raises(InvalidRequestError) as caught:
                await client.generate(prompt)  # type: ignore[arg-type]
            assert caught.value.param == param
        for turns in ([], [{"role": "tool", "content": "x"}], [{"role": "user"}]):
            with pytest.raises(InvalidRequestError):
                await client.chat(turns)
        with pytest.raises(InvalidRequestError, match="leaves no room") as caught:
            await client.generate("x" * 5000)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(ModelError, match="served: tiny"):
            await client.generate("x", model="other")


async def test_a_wrong_key_is_refused_everywhere() -> None:
    async with open_doors(ScriptedNetwork()) as rig, rig.async_client(key="nonsense") as client:
        for call in (client.models(), client.status(), client.generate("x")):
            with pytest.raises(AuthenticationError):
                await call


async def test_models_and_status() -> None:
    async with open_doors(ScriptedNetwork()) as rig:
        rig.views.is_ready = False
        async with rig.async_client() as client:
            (entry,) = await client.models()
            status = await client.status()
        with rig.client() as blocking:
            assert await asyncio.to_thread(blocking.models) == [entry]
            assert await asyncio.to_thread(blocking.status) == status
    assert entry.model == "tiny"
    assert entry.missing == (LayerSpan(2, 4),)
    assert not entry.is_ready
    assert entry.spec == rig.views.spec
    assert status.network_id == "net"


async def test_a_coordinator_that_is_away_is_named() -> None:
    async with open_doors(ScriptedNetwork()) as rig:
        ca = rig.ca_pem
    async with AsyncClient("127.0.0.1:1", "key", ca, timeout_s=5) as client:
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 cannot be reached"):
            await client.models()


async def test_a_request_above_the_limit_is_the_callers_to_change() -> None:
    async with open_doors(ScriptedNetwork()) as rig, rig.async_client() as client:
        with pytest.raises(InvalidRequestError, match="at most 4,194,304") as caught:
            await client.generate("w" * (5 << 20))
        with rig.client() as blocking, pytest.raises(InvalidRequestError):
            await asyncio.to_thread(blocking.generate, "w" * (5 << 20))
    assert caught.value.code == "request_too_large" and not caught.value.is_retryable


async def test_a_timeout_says_what_took_too_long_and_how_long_that_was() -> None:
    sentence = r"^the whole answer, which `timeout_s` bounds, did not come within 0.3 s$"
    async with open_doors(ScriptedNetwork(pause_after=3)) as rig, rig.async_client() as client:
        with pytest.raises(DeadlineError, match=sentence):
            await client.generate("Once", timeout_s=0.3)
        with rig.client() as blocking, pytest.raises(DeadlineError, match=sentence):
            await asyncio.to_thread(lambda: blocking.generate("Once", timeout_s=0.3))


async def test_a_wrong_ca_is_refused() -> None:
    async with open_doors(ScriptedNetwork()) as other:
        wrong = other.ca_pem
    async with (
        open_doors(ScriptedNetwork()) as rig,
        AsyncClient(rig.address, "key", wrong, timeout_s=5) as client,
    ):
        with pytest.raises(AuthenticationError, match="another network") as caught:
            await client.models()
    assert caught.value.code == "wrong_ca" and not caught.value.is_retryable


async def test_a_wrong_ca_prints_nothing_of_grpcs(tmp_path: Path) -> None:
    """What failed is raised; the C core's own line would land on our caller's terminal."""
    program = (
        "import plait\n"
        "try:\n    plait.Client().models()\n"
        "except plait.errors.PlaitError as error:\n    print(error.code)\n"
    )
    async with open_doors(ScriptedNetwork()) as other:
        (tmp_path / "ca.pem").write_bytes(other.ca_pem)
    async with open_doors(ScriptedNetwork()) as rig:
        where = {"PLAIT_ADDRESS": rig.address, "PLAIT_API_KEY": "key"}
        environment = {**os.environ, **where, "PLAIT_CA": str(tmp_path / "ca.pem")}
        environment.pop("GRPC_VERBOSITY", None)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(30):
            out, err = await process.communicate()
    assert (out.decode().strip(), err.decode()) == ("wrong_ca", "")


async def test_chat_blames_messages_on_both_clients() -> None:
    async with open_doors(ScriptedNetwork()) as rig:
        async with rig.async_client() as client:
            with pytest.raises(InvalidRequestError) as caught:
                await client.chat([])
        assert caught.value.param == "messages"
        with rig.client() as blocking, pytest.raises(InvalidRequestError) as caught:
            blocking.chat([])
        assert caught.value.param == "messages"


async def test_the_clients_own_deadline() -> None:
    network = ScriptedNetwork(is_holding=True)
    async with open_doors(network) as rig, rig.async_client() as client:
        stream = client.stream("x", timeout_s=0.3)
        with pytest.raises(DeadlineError):
            await anext(stream)
        assert stream.waiting is not None
        assert stream.waiting.reason == "kv_full"
        await network.wait_for(lambda: bool(network.of(ev.RequestCancelled)))


async def test_a_silent_network_is_given_up() -> None:
    network = ScriptedNetwork(is_holding=True)
    limits = GenerateLimits(silence_s=0.1)
    async with open_doors(network, generate=limits) as rig, rig.async_client() as client:
        with pytest.raises(DeadlineError, match="said nothing"):
            await client.generate("x")
    assert network.of(ev.RequestCancelled)


async def test_a_break_in_mid_answer_is_a_pause_and_the_text_goes_on() -> None:
    network = ScriptedNetwork(pause_after=5)
    async with open_doors(network) as rig, rig.async_client() as client:
        undisturbed = await _whole(network, client)
        network.go.clear()
        stream = client.stream("Once", seed=3, max_tokens=20)
        for _ in range(5):
            await anext(stream)
        network.pause_after = None
        assert network.relay is not None
        network.relay.attach(FIRST, 2)  # the first node came back with a new stream
        network.attach(FIRST)
        result = await stream.result()
    assert result.text == undisturbed
    assert result.num_attempts == 2
    assert network.starts[-1].open.prompt_tokens == len("Once") + 5
    assert network.starts[-1].open.max_new_tokens == 15


async def _whole(network: ScriptedNetwork, client: AsyncClient) -> str:
    network.go.set()
    return (await client.generate("Once", seed=3, max_tokens=20)).text


async def test_too_many_generations_of_one_key() -> None:
    network = ScriptedNetwork(pause_after=1)
    door = DoorLimits(per_key_max=1)
    async with open_doors(network, door=door) as rig, rig.async_client() as client:
        async with client.stream("x", max_tokens=5) as stream:
            await anext(stream)
            with pytest.raises(OverloadedError, match="at most 1"):
                await client.generate("y")
        await network.wait_for(lambda: bool(network.of(ev.RequestCancelled)))
        network.go.set()
        await network.wait_for(lambda: rig.gateway.generator.num_running == 0)
        assert await client.generate("z", max_tokens=2)


async def test_a_client_that_does_not_read_is_dropped() -> None:
    network = ScriptedNetwork(lambda start: [97] * start.open.max_new_tokens)
    door = DoorLimits(stall_s=0.2, per_key_max=1)
    request = gateway_pb2.GenerateRequest(prompt="x", max_tokens=2000)
    request.sampling.top_logprobs = 20
    metadata = (("authorization", f"Bearer {API_KEY}"),)
    async with (
        open_doors(network, door=door) as rig,
        narrow_channel(rig) as channel,
        rig.async_client() as client,
    ):
        unread = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(request, metadata=metadata)
        await network.wait_for(lambda: bool(network.of(ev.RequestSubmitted)))
        answer = None
        async with asyncio.timeout(20):
            while answer is None:
                with contextlib.suppress(OverloadedError):  # until the first one is dropped
                    answer = await client.generate("y", max_tokens=1)
        with pytest.raises(aio.AioRpcError, match="did not read"):
            async for _ in unread:
                pass


def narrow_channel(rig: GatewayRig) -> aio.Channel:
    """A channel that takes in no more than 64 KiB ahead of its reader."""
    options: list[tuple[str, str | int]] = [
        ("grpc.ssl_target_name_override", COORDINATOR_NAME),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 65_536),
    ]
    credentials = grpc.ssl_channel_credentials(root_certificates=rig.ca_pem)
    return aio.secure_channel(rig.address, credentials, options=options)


async def test_text_that_is_no_utf8_is_the_clients_mistake() -> None:
    async with open_doors(ScriptedNetwork()) as rig, narrow_channel(rig) as channel:
        path = "/plait.wire.v1.GatewayService/Generate"
        generate: aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(path)

        async def code_of(key: str) -> grpc.StatusCode:
            call = generate(b"\x12\x02\xff\xff", metadata=(("authorization", f"Bearer {key}"),))
            with pytest.raises(aio.AioRpcError):
                await call.read()
            return await call.code()

        assert await code_of(API_KEY) is grpc.StatusCode.INVALID_ARGUMENT
        assert await code_of("nonsense") is grpc.StatusCode.UNAUTHENTICATED


async def test_a_key_that_has_used_its_minute_learns_when_to_come_again() -> None:
    async with open_doors(ScriptedNetwork()) as rig, rig.async_client() as client:
        await rig.keys.limit_key("k1", KeyLimits(requests_per_min=1))
        await client.generate("x", max_tokens=1)
        with pytest.raises(OverloadedError, match="1 requests in a minute") as caught:
            await client.generate("x", max_tokens=1)
    assert caught.value.code == "rate_limited"
    assert caught.value.retry_after_s is not None and 0 < caught.value.retry_after_s <= 60
