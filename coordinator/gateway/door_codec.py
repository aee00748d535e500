"""Orders and happenings <-> the SDK's messages."""

import json
from collections.abc import Callable
from typing import Final, assert_never

from coordinator.gateway.conversation import Call, ToolFunction, ToolMode, ToolUse, Turn
from coordinator.gateway.happenings import (
    Accepted,
    CallDelta,
    Delta,
    Finished,
    GeneratedToken,
    Happening,
    Queued,
    Routed,
)
from coordinator.gateway.order import Conversation, Order, Prompt, PromptIds, RawPrompt
from coordinator.gateway.reader import EPOCH_MAX, Resume
from coordinator.gateway.response_format import read_name, read_schema
from coordinator.gateway.tokens import Tokenizer
from coordinator.gateway.tool_fields import checked_call, tool_use
from plait.errors import FrameError, InvalidRequestError, PlaitError
from plait.types import Reason
from plait.wire import codec
from plait.wire.sampling import sampling_from_proto
from plait.wire.status import code_of, number_of
from plait.wire.v1 import common_pb2, gateway_pb2
from scheduler.selection.fairness import SloClass

_TIERS_OUT: Final = {
    SloClass.INTERACTIVE: gateway_pb2.SERVICE_TIER_DEFAULT,
    SloClass.BATCH: gateway_pb2.SERVICE_TIER_FLEX,
}

_MODES: Final[dict[int, ToolMode]] = {
    gateway_pb2.TOOL_MODE_NONE: ToolMode.NONE,
    gateway_pb2.TOOL_MODE_AUTO: ToolMode.AUTO,
    gateway_pb2.TOOL_MODE_REQUIRED: ToolMode.REQUIRED,
}


def order_from_proto(request: gateway_pb2.GenerateRequest) -> Order:
    """Raises InvalidRequestError naming the parameter; ranges are checked later."""
    try:
        sampling = sampling_from_proto(request.sampling)
    except FrameError as error:
        param = error.message.split(" ", 1)[0]
        raise InvalidRequestError(error.message, param=param) from error
    return Order(
        prompt=_prompt(request),
        model_id=request.model_id,
        max_tokens=request.max_tokens if request.HasField("max_tokens") else None,
        sampling=sampling,
        seed=request.sampling.seed if request.sampling.HasField("seed") else None,
        stop=tuple(request.stop),
        request_id=request.request_id,
        ignore_eos=request.ignore_eos,
        draft_tokens=request.draft_tokens if request.HasField("draft_tokens") else None,
        slo=_slo(request.service_tier),
        resume=_resume(request),
    )


def _resume(request: gateway_pb2.GenerateRequest) -> Resume | None:
    if not request.HasField("resume"):
        return None
    resume = request.resume
    if resume.epoch > EPOCH_MAX:
        message = f"no request was tried {resume.epoch} times"
        raise InvalidRequestError(message, param="resume.epoch")
    return Resume(
        epoch=resume.epoch, token_ids=tuple(resume.token_ids), num_deltas=resume.num_deltas
    )


def _slo(tier: int) -> SloClass:
    if tier == gateway_pb2.SERVICE_TIER_FLEX:
        return SloClass.BATCH
    if tier in (gateway_pb2.SERVICE_TIER_UNSPECIFIED, gateway_pb2.SERVICE_TIER_DEFAULT):
        return SloClass.INTERACTIVE
    raise InvalidRequestError(
        f"service_tier {tier} is not offered here: default or flex", param="service_tier"
    )


def _prompt(request: gateway_pb2.GenerateRequest) -> Prompt:
    match request.WhichOneof("input"):
        case "prompt":
            _no_tools(request)
            return RawPrompt(request.prompt)
        case "chat":
            turns = tuple(
                _turn(f"messages[{at}]", turn) for at, turn in enumerate(request.chat.messages)
            )
            return Conversation(turns, _tools(request))
        case "tokens":
            _no_tools(request)
            return PromptIds(tuple(request.tokens.ids))
        case _:
            raise InvalidRequestError("give a prompt, messages or token ids", param="prompt")


def _no_tools(request: gateway_pb2.GenerateRequest) -> None:
    if request.tools or request.HasField("tool_choice"):
        raise InvalidRequestError("tools are only for chats", param="tools")


def _turn(name: str, message: gateway_pb2.ChatMessage) -> Turn:
    calls = tuple(
        checked_call(f"{name}.tool_calls[{at}]", Call(call.id, call.name, call.arguments_json))
        for at, call in enumerate(message.tool_calls)
    )
    if calls and message.role != "assistant":
        raise InvalidRequestError(
            f"{name} is no assistant's and has tool calls", param=f"{name}.tool_calls"
        )
    if (message.role == "tool") != bool(message.tool_call_id):
        raise InvalidRequestError(
            f"{name}: a tool's message, and no other, names its tool_call_id",
            param=f"{name}.tool_call_id",
        )
    return Turn(
        message.role, message.content, calls, call_id=message.tool_call_id, name=message.name
    )


def _tools(request: gateway_pb2.GenerateRequest) -> ToolUse | None:
    functions = tuple(
        ToolFunction(
            name=read_name(f"tools[{at}].function.name", tool.name),
            description=tool.description,
            parameters=_parameters(f"tools[{at}].function.parameters", tool.parameters_json),
            is_strict=tool.strict,
        )
        for at, tool in enumerate(request.tools)
    )
    is_parallel = request.parallel_tool_calls if request.HasField("parallel_tool_calls") else None
    return tool_use(functions, _choice(request.tool_choice), is_parallel=is_parallel)


def _choice(message: gateway_pb2.ToolChoice) -> tuple[ToolMode, str] | None:
    if message.WhichOneof("choice") == "function":
        return ToolMode.REQUIRED, message.function
    if message.mode == gateway_pb2.TOOL_MODE_UNSPECIFIED:
        return None
    mode = _MODES.get(message.mode)
    if mode is None:
        raise InvalidRequestError(
            f"tool_choice {message.mode} is not offered here: none, auto or required",
            param="tool_choice",
        )
    return mode, ""


def _parameters(name: str, text: str) -> str:
    """A schema as text, in the form that bodies over HTTP give it."""
    if not text:
        return ""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{name} is not JSON: {error}", param=name) from error
    return read_schema(name, content)


def happening_to_proto(
    happening: Happening, tokenizer: Tokenizer, display_name: Callable[[str], str]
) -> gateway_pb2.GenerateEvent:
    """One event of the SDK's stream. `display_name` knows nodes by id."""
    match happening:
        case Accepted():
            accepted = gateway_pb2.Accepted(
                request_id=happening.request_id,
                model_id=happening.model_id,
                prompt_tokens=happening.prompt_tokens,
                service_tier=_TIERS_OUT[happening.slo],
                epoch=happening.epoch,
            )
            return gateway_pb2.GenerateEvent(accepted=accepted)
        case Queued():
            queued = gateway_pb2.QueuedNotice(
                position=happening.position,
                reason=happening.reason.code,
                message=happening.reason.message,
                wait_ms=happening.wait_ms,
            )
            return gateway_pb2.GenerateEvent(queued=queued)
        case Routed():
            hops = [
                gateway_pb2.Hop(
                    node_id=stage.node_id,
                    display_name=display_name(stage.node_id),
                    span=codec.span_to_proto(stage.span),
                )
                for stage in happening.route
            ]
            return gateway_pb2.GenerateEvent(
                routed=gateway_pb2.Routed(epoch=happening.epoch, hops=hops)
            )
        case Delta():
            delta = gateway_pb2.TextDelta(
                text=happening.text,
                token_ids=[token.token_id for token in happening.tokens],
                logprobs=[
                    _logprob(token, token.logprob, tokenizer)
                    for token in happening.tokens
                    if token.logprob is not None
                ],
            )
            return gateway_pb2.GenerateEvent(delta=delta)
        case CallDelta():
            call = gateway_pb2.ToolCallDelta(
                index=happening.index,
                id=happening.call_id,
                name=happening.name,
                arguments_json=happening.arguments,
            )
            return gateway_pb2.GenerateEvent(tool_call=call)
        case Finished():
            return gateway_pb2.GenerateEvent(finished=_finished(happening))
        case _:
            assert_never(happening)


def _logprob(
    token: GeneratedToken, logprob: float, tokenizer: Tokenizer
) -> gateway_pb2.DeltaLogprob:
    return gateway_pb2.DeltaLogprob(
        token_id=token.token_id,
        text=tokenizer.token_text(token.token_id),
        logprob=logprob,
        top=[
            gateway_pb2.TopLogprob(
                token_id=top.token_id,
                text=tokenizer.token_text(top.token_id),
                logprob=top.logprob,
            )
            for top in token.top_logprobs
        ],
    )


def _finished(happening: Finished) -> gateway_pb2.Finished:
    message = gateway_pb2.Finished(
        reason=codec.finish_reason_to_proto(happening.reason),
        prompt_tokens=happening.prompt_tokens,
        completion_tokens=happening.completion_tokens,
        ttft_ms=happening.ttft_ms or 0,
        total_ms=happening.total_ms,
        num_attempts=happening.num_attempts,
        cached_tokens=happening.cached_tokens,
    )
    if happening.error is not None:
        message.status.CopyFrom(_status(happening.error))
    return message


def _status(error: PlaitError) -> common_pb2.Status:
    reason = Reason(code=error.code, message=error.message)
    return codec.reason_to_proto(reason, number_of(code_of(error)))
