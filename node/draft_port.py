"""What a node asks of its draft model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from plait.types import ModelSource, ModelSpec, Reason, RequestId, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOrder:
    """Guess `count` tokens behind a sequence that goes on with `token_ids` from `start`. It never
    becomes longer than `kv_tokens`. A row waits for the answer where it `is_waited` for."""

    request_id: RequestId
    epoch: int
    start: int
    token_ids: tuple[int, ...]
    count: int
    is_waited: bool
    kv_tokens: int
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class DraftAnswer:
    """Guesses, and what one took; none where the model has no room for the request."""

    request_id: RequestId
    epoch: int
    token_ids: tuple[int, ...]
    step_ms: float = 0.0


DraftSink = Callable[[DraftAnswer], None]


class DraftHost(Protocol):
    """A small model in a thread of its own. Only `stop` and `check` are waited for."""

    def start(self, sink: DraftSink) -> None:
        """`sink` runs on the caller's event loop, once for each order."""
        ...

    async def stop(self) -> None:
        """Free the model and end the thread. Idempotent."""
        ...

    async def check(self, spec: ModelSpec, source: ModelSource) -> Reason | None:
        """Why its tokens are not those of this model; None: they are."""
        ...

    def order(self, order: DraftOrder) -> None:
        """Queue guesses of a request; an older epoch of it is dropped."""
        ...

    def close(self, request_id: RequestId, epoch: int) -> None:
        """Free this epoch and older ones of the request; nothing comes of them any more."""
        ...
