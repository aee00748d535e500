"""Requests and answers of the SDK, without a network."""

import subprocess
import sys

import pytest

import plait
from plait.errors import InvalidRequestError, ServiceError
from plait.sdk.fold import Fold
from plait.sdk.requests import GenerateOptions, build_request, conversation
from plait.types import FinishReason
from plait.wire.v1 import common_pb2, gateway_pb2


def test_what_is_left_out_stays_absent_on_the_wire() -> None:
    request = build_request("hi", {"temperature": 0, "seed": None})
    assert request.prompt == "hi"
    assert request.sampling.HasField("temperature")
    assert not request.sampling.HasField("seed")
    assert not request.HasField("max_tokens")
    assert request.model_id == request.request_id == ""


def test_every_option_reaches_the_wire() -> None:
    options: GenerateOptions = {
        "model": "m",
        "max_tokens": 5,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.5,
        "min_p": 0.25,
        "presence_penalty": 1.0,
        "frequency_penalty": 1.5,
        "repetition_penalty": 1.25,
        "seed": 2**64 - 1,
        "top_logprobs": 2,
        "stop": "x",
        "logit_bias": {7: -1.5},
        "response_format": {"type": "regex", "pattern": "a+"},
        "tools": [{"type": "function", "function": {"name": "f", "strict": True}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "ignore_eos": True,
        "draft_tokens": 0,
        "service_tier": "flex",
        "request_id": "r",
        "traceparent": "00-1-1-01",
        "timeout_s": 3.0,
    }
    assert set(options) == set(GenerateOptions.__annotations__)
    request = build_request([1, 2], options)
    sampling = common_pb2.SamplingParams(
        temperature=0.5,
        top_k=3,
        top_p=0.5,
        min_p=0.25,
        presence_penalty=1.0,
        frequency_penalty=1.5,
        repetition_penalty=1.25,
        seed=2**64 - 1,
        top_logprobs=2,
        logit_bias=[common_pb2.LogitBias(token_id=7, bias=-1.5)],
        constraint=common_pb2.Constraint(regex="a+"),
    )
    assert request == gateway_pb2.GenerateRequest(
        model_id="m",
        tokens=gateway_pb2.TokenIds(ids=[1, 2]),
        max_tokens=5,
        sampling=sampling,
        stop=["x"],
        request_id="r",
        ignore_eos=True,
        draft_tokens=0,
        tools=[gateway_pb2.Tool(name="f", strict=True)],
        tool_choice=gateway_pb2.ToolChoice(function="f"),
        parallel_tool_calls=False,
        service_tier=gateway_pb2.SERVICE_TIER_FLEX,
    )


def test_tiers_that_nobody_offers_are_refused_by_name() -> None:
    default = gateway_pb2.SERVICE_TIER_DEFAULT
    assert build_request("x", {}).service_tier == default
    assert build_request("x", {"service_tier": "auto"}).service_tier == default
    with pytest.raises(InvalidRequestError) as caught:
        build_request("x", {"service_tier": "priority"})
    assert caught.value.param == "service_tier"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([], "prompt"),
        ([1, "a"], "prompt"),
        ([-1], "prompt"),
        ([{"role": "user", "content": "x", "name": "y"}], "messages[0].name"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": "x"}, "y"], "messages"),
        ("\udfff", "prompt"),
    ],
)
def test_prompts_that_cannot_be_sent(prompt: object, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        build_request(prompt, {})  # type: ignore[arg-type]
    assert caught.value.param == param


@pytest.mark.parametrize("messages", [[], (), "", "hi", [1, 2], ["hi"]])
def test_a_chat_without_messages_blames_the_messages(messages: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        conversation(messages)  # type: ignore[arg-type]
    assert caught.value.param == "messages"


def test_a_stop_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        build_request("x", {"stop": [1]})  # type: ignore[list-item]
    assert caught.value.param == "stop"


def test_events_fold_into_a_completion() -> None:
    fold = Fold()
    events = [
        gateway_pb2.GenerateEvent(accepted=gateway_pb2.Accepted(request_id="r", model_id="m")),
        gateway_pb2.GenerateEvent(queued=gateway_pb2.QueuedNotice(position=2, reason="kv_full")),
        gateway_pb2.GenerateEvent(routed=gateway_pb2.Routed(epoch=1)),
        gateway_pb2.GenerateEvent(delta=gateway_pb2.TextDelta(text="a", token_ids=[1])),
        gateway_pb2.GenerateEvent(delta=gateway_pb2.TextDelta(text="b", token_ids=[2, 3])),
        gateway_pb2.GenerateEvent(),
    ]
    deltas = [fold.add(event) for event in events]
    assert [str(delta) for delta in deltas if delta is not None] == ["a", "b"]
    assert fold.waiting is None
    with pytest.raises(ServiceError, match="broke off"):
        fold.result()
    end = gateway_pb2.Finished(
        reason=common_pb2.FINISH_REASON_LENGTH,
        prompt_tokens=7,
        completion_tokens=3,
        ttft_ms=100,
        total_ms=300,
        num_attempts=1,
    )
    fold.add(gateway_pb2.GenerateEvent(finished=end))
    result = fold.result()
    assert (result.text, result.token_ids) == ("ab", (1, 2, 3))
    assert result.finish_reason is FinishReason.LENGTH
    assert result.tokens_per_s == 10.0
    assert (result.request_id, result.model) == ("r", "m")


def test_the_package_names_its_clients_and_imports_nothing_heavy() -> None:
    assert plait.Client.__name__ == "Client"
    assert plait.AsyncClient.__name__ == "AsyncClient"
    assert set(plait.__all__) <= set(dir(plait))
    with pytest.raises(AttributeError):
        _ = plait.Nonsense  # type: ignore[attr-defined]
    code = (
        "import sys, plait; heavy = {'grpc', 'torch', 'numpy', 'cryptography', 'google.protobuf'};"
        "sys.exit(bool(heavy & sys.modules.keys()));"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
    code = (
        "import sys, plait; plait.Client;"
        "sys.exit(bool({'torch', 'numpy', 'fastapi'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_client_comes_back_with_the_highest_epoch_that_it_was_told_of() -> None:
    fold = Fold()
    for event, expected in (
        (gateway_pb2.GenerateEvent(routed=gateway_pb2.Routed(epoch=2)), 2),
        (gateway_pb2.GenerateEvent(accepted=gateway_pb2.Accepted(epoch=18)), 18),
        (gateway_pb2.GenerateEvent(routed=gateway_pb2.Routed(epoch=11)), 18),
    ):
        fold.add(event)
        assert fold.resume().epoch == expected
