"""Which limits a key may have, and how they travel."""

from typing import Final

from coordinator.ports import KeyLimits
from plait.errors import InvalidRequestError
from plait.wire.v1 import admin_pb2 as pb

PER_MIN_MAX: Final = 1_000_000_000
MODELS_MAX: Final = 64
MODEL_CHARS_MAX: Final = 256


def check_limits(limits: KeyLimits) -> None:
    """Raises InvalidRequestError naming the first that is none."""
    for name, value in (
        ("requests_per_min", limits.requests_per_min),
        ("tokens_per_min", limits.tokens_per_min),
    ):
        if value is not None and not 1 <= value <= PER_MIN_MAX:
            raise InvalidRequestError(
                f"{name} is a number from 1 to {PER_MIN_MAX}, not {value}; a key that may do "
                "nothing is a revoked one",
                param=name,
            )
    if len(limits.models) > MODELS_MAX:
        raise InvalidRequestError(
            f"{len(limits.models)} models: a key names at most {MODELS_MAX}, or none for all",
            param="models",
        )
    if any(not 0 < len(name) <= MODEL_CHARS_MAX for name in limits.models):
        raise InvalidRequestError("a model's name is empty or too long", param="models")
    if limits.expires_unix_ms is not None and limits.expires_unix_ms <= 0:
        raise InvalidRequestError("a key cannot expire before 1970", param="expires_unix_ms")


def limits_of(message: pb.KeyLimits) -> KeyLimits:
    """As a stranger sends them: to be checked by the store."""
    return KeyLimits(
        requests_per_min=message.requests_per_min or None,
        tokens_per_min=message.tokens_per_min or None,
        models=tuple(message.models),
        expires_unix_ms=message.expires_unix_ms or None,
    )


def message_of(limits: KeyLimits) -> pb.KeyLimits:
    """The other way."""
    return pb.KeyLimits(
        requests_per_min=limits.requests_per_min or 0,
        tokens_per_min=limits.tokens_per_min or 0,
        models=limits.models,
        expires_unix_ms=limits.expires_unix_ms or 0,
    )
