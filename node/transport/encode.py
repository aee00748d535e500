"""The core's messages -> bytes of a LinkFrame or a NodeToGateway."""

from collections.abc import Iterable, Sequence
from typing import Final, assert_never

from node.core.messages import (
    Activations,
    Broken,
    Close,
    GatewayMessage,
    KeptRoute,
    LinkMessage,
    Opened,
    PrefixShort,
    StageOpen,
    Token,
)
from plait.wire.codec import (
    dtype_to_proto,
    finish_reason_to_proto,
    reason_to_proto,
)
from plait.wire.sampling import sampling_to_proto
from plait.wire.v1 import common_pb2, data_pb2

TOGETHER_BYTES: Final = 64 * 1024
"""Messages leave together up to about this: a step's few rows, and no more than a home's upload
sends in some tens of milliseconds, since the first of them arrives with the last."""

TOGETHER_MAX: Final = 64
"""How many messages may leave together."""


def link_frame(sequence: int, message: LinkMessage) -> bytes:
    """One frame of a hop. A decode frame is the rows and at most 128 bytes."""
    frame = data_pb2.LinkFrame(sequence=sequence)
    match message:
        case Activations():
            rows = frame.activations
            rows.request_id = message.request_id
            rows.epoch = message.epoch
            rows.position = message.position
            if message.num_tokens != 1:
                rows.num_tokens = message.num_tokens
            if message.dtype is not None:
                rows.dtype = dtype_to_proto(message.dtype)
            rows.payload = message.payload
            rows.sample = message.sample
            if message.block_name is not None:
                rows.block_name = message.block_name
            if message.drafted_ids:
                rows.drafted_ids.extend(message.drafted_ids)
        case Token():
            _fill_token(frame.token, message)
            if message.drafts_max:
                frame.token.drafts_max = message.drafts_max
        case StageOpen():
            _fill_open(frame.open, message)
        case Close():
            frame.close.request_id = message.request_id
            frame.close.epoch = message.epoch
            frame.close.reason = finish_reason_to_proto(message.reason)
        case Broken():
            frame.broken.CopyFrom(_broken(message))
        case PrefixShort():
            frame.prefix_short.request_id = message.request_id
            frame.prefix_short.epoch = message.epoch
            frame.prefix_short.blocks = message.blocks
        case _:
            assert_never(message)
    return frame.SerializeToString()


def gateway_frame(message: GatewayMessage) -> bytes:
    """One message up to the gateway."""
    frame = data_pb2.NodeToGateway()
    match message:
        case Token():
            _fill_scored_token(frame.token, message)
        case KeptRoute():
            kept = frame.kept
            kept.ticket.payload, kept.ticket.signature = message.ticket
            kept.position = message.position
            kept.is_running = message.is_running
            kept.cached_tokens = message.cached_tokens
            for token in message.tokens:
                _fill_scored_token(kept.tokens.add(), token)
        case Opened():
            frame.opened.request_id = message.request_id
            frame.opened.epoch = message.epoch
            frame.opened.cached_tokens = message.cached_tokens
        case Broken():
            frame.broken.CopyFrom(_broken(message))
        case _:
            assert_never(message)
    return frame.SerializeToString()


def first_few(frames: Iterable[bytes]) -> list[bytes]:
    """As many of them as may leave together; no more are asked for."""
    taken: list[bytes] = []
    num_bytes = 0
    for frame in frames:
        taken.append(frame)
        num_bytes += len(frame)
        if len(taken) >= TOGETHER_MAX or num_bytes >= TOGETHER_BYTES:
            break
    return taken


def together(frames: Sequence[bytes]) -> bytes:
    """Frames of a stream as one message: the first one, with the others in its `more`."""
    first, *others = frames
    return first + data_pb2.More(more=others).SerializeToString() if others else first


def attach_frame(incarnation: int) -> bytes:
    """First message of a gateway link."""
    attach = data_pb2.LinkAttach(incarnation=incarnation)
    return data_pb2.NodeToGateway(attach=attach).SerializeToString()


def credit_frame(sequence: int, num_frames: int) -> bytes:
    """Gives back `num_frames` of the window."""
    credit = data_pb2.Credit(frames=num_frames)
    return data_pb2.LinkFrame(sequence=sequence, credit=credit).SerializeToString()


def ping_frame(sequence: int, nonce: int) -> bytes:
    """Asks for a pong."""
    ping = data_pb2.LinkPing(nonce=nonce)
    return data_pb2.LinkFrame(sequence=sequence, ping=ping).SerializeToString()


def pong_frame(sequence: int, nonce: int) -> bytes:
    """Answers a ping."""
    pong = data_pb2.LinkPing(nonce=nonce)
    return data_pb2.LinkFrame(sequence=sequence, pong=pong).SerializeToString()


def _fill_token(target: data_pb2.SampledToken, token: Token) -> None:
    target.request_id = token.request_id
    target.epoch = token.epoch
    target.position = token.position
    target.token_id = token.token_id
    if token.finish_reason is not None:
        target.finish_reason = finish_reason_to_proto(token.finish_reason)


def _fill_scored_token(target: data_pb2.SampledToken, token: Token) -> None:
    """With its log probabilities and what was guessed, which the gateway alone wants."""
    _fill_token(target, token)
    if token.is_guess:
        target.is_guess = True
    if token.num_guesses:
        target.num_guesses = token.num_guesses
    if token.logprob is not None:
        target.logprob = token.logprob
        target.top_logprobs.extend(
            common_pb2.TokenLogprob(token_id=top.token_id, logprob=top.logprob)
            for top in token.top_logprobs
        )


def _fill_open(target: data_pb2.Open, opened: StageOpen) -> None:
    """For the next stage: the same ticket, one stage on."""
    target.ticket.payload, target.ticket.signature = opened.ticket
    target.stage_index = opened.stage_index + 1
    target.sampling.CopyFrom(sampling_to_proto(opened.sampling))
    target.stop_token_ids.extend(opened.stop_token_ids)
    target.max_new_tokens = opened.max_new_tokens
    target.prompt_tokens = opened.prompt_tokens
    target.penalty_prompt_ids.extend(opened.penalty_prompt_ids)
    target.penalty_generated_ids.extend(opened.penalty_generated_ids)
    target.trace_id = opened.trace_id
    target.block_names = b"".join(opened.block_names)
    target.cached_blocks = opened.cached_blocks
    if opened.drafts_max:
        target.drafts_max = opened.drafts_max


def _broken(broken: Broken) -> data_pb2.Broken:
    return data_pb2.Broken(
        request_id=broken.request_id,
        epoch=broken.epoch,
        stage_index=broken.stage_index,
        node_id=broken.node_id,
        status=reason_to_proto(broken.reason, int(broken.code)),
    )
