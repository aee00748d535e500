"""What the ranks of a group do together. All of them call the same, in the same order."""

from typing import Protocol

from torch import Tensor

from node.engine.parallel.split import Split


class Communicator(Protocol):
    """Carries tensors between ranks. Everything raises UnavailableError(reason="rank_lost") where a
    rank is gone or has not answered in time."""

    @property
    def split(self) -> Split:
        """Which rank this is."""
        ...

    def all_reduce(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, the same bits on every rank; may be `part` itself, which is
        given away."""
        ...

    def broadcast(self, rows: Tensor) -> None:
        """Rank 0's `rows` into the others'."""
        ...

    def gather(self, part: Tensor, widths: tuple[int, ...]) -> Tensor | None:
        """Rank 0 gets all parts side by side, rank r's (R, widths[r]); the others None."""
        ...
