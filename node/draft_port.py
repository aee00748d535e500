"""What a node asks of its draft model."""

from collections.abc import Callable
from typing import Protocol

from node.core.effects import Draft
from node.core.events import Drafted, DraftModelChanged
from plait.types import ModelSource, ModelSpec, Reason, RequestId

DraftSink = Callable[[Drafted | DraftModelChanged], None]


class DraftHost(Protocol):
    """A small model in a thread of its own. Only `stop` and `check` are waited for."""

    @property
    def model_id(self) -> str: ...

    @property
    def num_failed(self) -> int:
        """Steps that failed; those who waited for them went without."""
        ...

    def start(self, sink: DraftSink) -> None:
        """`sink` runs on the caller's event loop, once for each order; and once when the thread
        dies, whose open orders are not answered any more. Later ones are, with nothing."""
        ...

    async def stop(self) -> None:
        """Free the model and end the thread. Idempotent."""
        ...

    async def check(self, spec: ModelSpec, source: ModelSource) -> Reason | None:
        """Why its tokens are not those of this model; None: they are."""
        ...

    def order(self, order: Draft) -> None:
        """Queue guesses of a request; an older epoch of it is dropped."""
        ...

    def close(self, request_id: RequestId, epoch: int) -> None:
        """Free this epoch and older ones of the request; nothing comes of them any more."""
        ...
