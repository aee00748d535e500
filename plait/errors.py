"""Every error plait raises on purpose, as one tree.

    PlaitError
    ├── IllegalTransition            our bug: a trigger in a state that does not allow it
    ├── UserError                    somebody asked for what cannot be done; says what helps
    │   ├── InvalidRequestError      a parameter of a request, named in `param`
    │   ├── ConfigError              a flag, a file, an address
    │   ├── ModelError               unknown model, unsupported architecture
    │   │   └── WeightsError         corrupt, truncated, wrong format, disk full
    │   └── AuthenticationError      no key, a wrong or a revoked one
    ├── PeerError                    a stranger's mistake: drop it, count it
    │   ├── TicketError              forged, expired, replayed or meant for another hop
    │   └── FrameError               wrong shape, dtype, position or size
    └── ServiceError                 the network could not; see `is_retryable`
        ├── UnavailableError         layers without a node, coordinator away
        ├── OverloadedError          queue or KV full
        ├── DeadlineError            no answer in time
        └── CancelledByClientError   the client went away

Each class has a `reason`, which is the `code` of its errors unless they say another.
"""

import re
from typing import ClassVar, Final

CAUSE_CHARS_MAX: Final = 200


class PlaitError(Exception):
    """Base of all plait errors.

    `reason` is a stable snake_case word for programs; `str(error)` is a sentence for people that
    says what failed, where, and what helps.
    """

    reason: ClassVar[str] = "internal"
    is_retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.code = reason if reason is not None else type(self).reason

    @property
    def message(self) -> str:
        return str(self)


class IllegalTransition(PlaitError):  # noqa: N818 - a bug, not an operating error
    """A trigger arrived in a state that does not allow it: a bug, never an operating error."""

    def __init__(self, machine: str, key: object, state: str, trigger: str) -> None:
        super().__init__(f"{machine} {key!r}: {trigger} is not allowed in state {state}")


class UserError(PlaitError):
    """Somebody asked for something that cannot be done."""

    reason = "bad_request"


class InvalidRequestError(UserError):
    """A parameter of a request is wrong; `param` names it."""

    reason = "invalid_argument"

    def __init__(
        self, message: str, *, param: str | None = None, reason: str | None = None
    ) -> None:
        super().__init__(message, reason=reason)
        self.param = param


class ConfigError(UserError):
    """A flag, a configuration file or an address is wrong."""

    reason = "bad_config"


class ModelError(UserError):
    """A model is unknown, or of an architecture that plait does not run."""

    reason = "model_not_found"


class WeightsError(ModelError):
    """Weights are corrupt, truncated, of a refused format, or could not be stored."""

    reason = "weights_corrupt"


class AuthenticationError(UserError):
    """No key or token, or a wrong, used, expired or revoked one."""

    reason = "unauthenticated"


class PeerError(PlaitError):
    """A stranger's mistake. Dropped and counted, never fatal."""

    reason = "peer_error"


class TicketError(PeerError):
    """A route ticket was forged, expired, replayed or meant for another hop: PERMISSION_DENIED."""

    reason = "ticket_invalid"


class FrameError(PeerError):
    """A frame has a wrong shape, dtype, position or size: INVALID_ARGUMENT."""

    reason = "frame_invalid"


class ServiceError(PlaitError):
    """The network could not do it."""

    reason = "service_error"


class UnavailableError(ServiceError):
    """Layers without a serving node, or the coordinator cannot be reached."""

    reason = "unavailable"
    is_retryable = True


class OverloadedError(ServiceError):
    """Queue or KV cache is full, or a key has used what it may. `retry_after_s`: when there is
    room again, where that is known."""

    reason = "overloaded"
    is_retryable = True

    def __init__(
        self, message: str, *, reason: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, reason=reason)
        self.retry_after_s = retry_after_s


class DeadlineError(ServiceError):
    """No answer in time."""

    reason = "deadline_exceeded"
    is_retryable = True


class CancelledByClientError(ServiceError):
    """The client went away or asked to stop."""

    reason = "cancelled"


def plain_cause(error: BaseException) -> str:
    """Why something failed, to end a sentence with: the operating system's words where it is at
    the bottom (without number and path, which are for programs), else the error's first line."""
    below: BaseException | None = error
    for _ in range(8):  # a chain may be a circle
        if below is None:
            break
        if isinstance(below, OSError) and below.strerror:
            if below.errno is not None and below.errno < 0:  # of the resolver, not of the system
                return "this machine's DNS does not know that name, or there is no network"
            return below.strerror[0].lower() + below.strerror[1:]
        below = below.__cause__ or below.__context__
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    return re.sub(r"\[Errno -?\d+\] ?", "", line)[:CAUSE_CHARS_MAX]
