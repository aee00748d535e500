"""How tokens are chosen <-> protobuf. `x_from_proto` raises FrameError on what a stranger should
not send."""

import math

from plait.errors import FrameError
from plait.types import (
    CONSTRAINT_CHARS_MAX,
    LOGIT_BIAS_MAX,
    Constraint,
    ConstraintKind,
    SamplingParams,
)
from plait.wire.v1 import common_pb2


def sampling_to_proto(sampling: SamplingParams) -> common_pb2.SamplingParams:
    message = common_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
    )
    if sampling.top_logprobs is not None:
        message.top_logprobs = sampling.top_logprobs
    for token_id, bias in sampling.logit_bias:
        message.logit_bias.add(token_id=token_id, bias=bias)
    if sampling.constraint is not None:
        message.constraint.CopyFrom(constraint_to_proto(sampling.constraint))
    return message


def sampling_from_proto(message: common_pb2.SamplingParams) -> SamplingParams:
    """Absent fields take their defaults. Raises FrameError for a number that is not finite, too
    many biases and a constraint of no kind or too long."""

    def number(name: str, default: float) -> float:
        value = float(getattr(message, name)) if message.HasField(name) else default  # type: ignore[arg-type]
        if not math.isfinite(value):
            raise FrameError(f"{name} is not a finite number", reason="sampling_invalid")
        return value

    return SamplingParams(
        temperature=number("temperature", 1.0),
        top_k=message.top_k,
        top_p=number("top_p", 1.0),
        min_p=number("min_p", 0.0),
        presence_penalty=number("presence_penalty", 0.0),
        frequency_penalty=number("frequency_penalty", 0.0),
        repetition_penalty=number("repetition_penalty", 1.0),
        seed=message.seed,
        top_logprobs=message.top_logprobs if message.HasField("top_logprobs") else None,
        logit_bias=_bias_from_proto(message),
        constraint=constraint_from_proto(message.constraint)
        if message.HasField("constraint")
        else None,
    )


def constraint_to_proto(constraint: Constraint) -> common_pb2.Constraint:
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return common_pb2.Constraint(json_schema=constraint.text)
        case ConstraintKind.REGEX:
            return common_pb2.Constraint(regex=constraint.text)
        case ConstraintKind.GRAMMAR:
            return common_pb2.Constraint(grammar=constraint.text)


def constraint_from_proto(message: common_pb2.Constraint) -> Constraint:
    """Raises FrameError for no kind that is known here, or a text that is too long."""
    field = message.WhichOneof("kind")
    if field is None:
        raise FrameError("constraint is of no kind known here", reason="constraint_unknown")
    constraint = Constraint(ConstraintKind(field), getattr(message, field))
    if len(constraint.text) > CONSTRAINT_CHARS_MAX:
        raise FrameError(
            f"constraint has {len(constraint.text)} characters, at most {CONSTRAINT_CHARS_MAX} "
            "are taken",
            reason="constraint_too_long",
        )
    return constraint


def _bias_from_proto(message: common_pb2.SamplingParams) -> tuple[tuple[int, float], ...]:
    pairs = {entry.token_id: entry.bias for entry in message.logit_bias}
    if len(message.logit_bias) > LOGIT_BIAS_MAX or len(pairs) < len(message.logit_bias):
        raise FrameError(
            f"logit_bias names a token twice or more than {LOGIT_BIAS_MAX}",
            reason="sampling_invalid",
        )
    if not all(math.isfinite(bias) for bias in pairs.values()):
        raise FrameError("logit_bias is not a finite number", reason="sampling_invalid")
    return tuple(sorted(pairs.items()))
