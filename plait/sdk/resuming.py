"""Going on after a lost stream: the same request again, with what the client has of its answer."""

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc
from grpc import aio

from plait.sdk.fold import Fold
from plait.wire.status import REASON_KEY
from plait.wire.v1 import gateway_pb2

RESUME_S: Final = 60.0
"""How long a network that has gone is tried again; nodes keep a running answer that long."""

FIRST_WAIT_S: Final = 0.1
WAIT_S_MAX: Final = 1.0
WHOLE_ANSWER: Final = "the whole answer, which `timeout_s` bounds,"
STOPPING: Final = "coordinator_stopping"
_LOST_WORDS: Final = ("RST_STREAM", "Stream removed", "Socket closed", "GOAWAY")

_OWN_END: Final = ("Channel closed!", "Locally cancelled by application!")
"""How gRPC calls what this side has ended itself."""


@dataclass(slots=True)
class Reach:
    """Whether a client has heard from its network: a wrong address is not waited for."""

    is_proven: bool = False


class Resumption:
    """Decides whether a failed call is made again, when, and with what. `now_s` is monotonic.

    A call is made again where the connection was lost or the coordinator stopped, never where the
    network has answered. A network that this client never reached is not waited for.
    """

    def __init__(
        self,
        request: gateway_pb2.GenerateRequest,
        *,
        timeout_s: float,
        reach: Reach,
        now_s: Callable[[], float] = time.perf_counter,
        rng: random.Random | None = None,
    ) -> None:
        self.request = request
        if not request.request_id:
            request.request_id = secrets.token_hex(12)
        self._reach = reach
        self._now_s = now_s
        self._rng = rng if rng is not None else random.Random()
        self.whole_s = timeout_s
        self._deadline_s = now_s() + timeout_s
        self._lost_s: float | None = None
        self._num_tries = 0

    @property
    def timeout_s(self) -> float:
        """What is left of the whole answer's time."""
        return max(0.001, self._deadline_s - self._now_s())

    def heard(self) -> None:
        """The network answers."""
        self._reach.is_proven = True
        self._lost_s = None
        self._num_tries = 0

    def wait_s(self, error: grpc.RpcError, fold: Fold) -> float | None:
        """How long to wait before the request is made again, which says then what `fold` has; None
        where the error is final."""
        now_s = self._now_s()
        if not self._reach.is_proven or not is_lost(error):
            return None
        if self._lost_s is None:
            self._lost_s = now_s
        bound_s = min(WAIT_S_MAX, FIRST_WAIT_S * 2.0**self._num_tries)
        wait_s = self._rng.uniform(bound_s / 2, bound_s)
        self._num_tries = min(self._num_tries + 1, 16)
        if now_s + wait_s > min(self._deadline_s, self._lost_s + RESUME_S):
            return None
        self.request.resume.CopyFrom(fold.resume())
        return wait_s


def is_lost(error: grpc.RpcError) -> bool:
    """Whether the connection went, or the coordinator said that it goes."""
    if not isinstance(error, grpc.Call | aio.AioRpcError):
        return False
    metadata = dict(error.trailing_metadata() or ())
    reason = metadata.get(REASON_KEY)
    if reason is not None:
        return bool(reason == STOPPING)
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return True
    details = error.details() or ""
    if error.code() is grpc.StatusCode.CANCELLED:  # a stop that had no time to say so
        return not any(words in details for words in _OWN_END)
    is_odd = error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
    return is_odd and any(word in details for word in _LOST_WORDS)
