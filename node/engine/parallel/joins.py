"""How the parts of a layer become whole again: two sums over the ranks a layer."""

from collections.abc import Callable

from torch import Tensor

from node.engine.layers.block import FeedForward
from node.engine.layers.joins import Joins
from node.engine.linear import Linear
from node.engine.parallel.communicator import Communicator

CallHead = Callable[[int], None]
"""Tells the other ranks that the LM head follows, over so many rows."""


class GroupJoins(Joins):
    """Sums, choices and logits over the ranks of `communicator`. `whole_vocab` is the number of
    logits of all ranks together, `call_head` what rank 0 does before they meet at the head."""

    is_alone = False

    def __init__(
        self, communicator: Communicator, *, whole_vocab: int, call_head: CallHead | None = None
    ) -> None:
        self._communicator = communicator
        self._whole_vocab = whole_vocab
        self._call_head = call_head
        self.leads = communicator.split.rank == 0

    def out(self, linear: Linear) -> Linear:
        return SummedLinear(linear, self._communicator)

    def feed_forward(self, part: FeedForward) -> FeedForward:
        return SummedFeedForward(part, self._communicator)

    def router(self, linear: Linear) -> Linear:
        return LedLinear(linear, self._communicator)

    def head(self, linear: Linear) -> Linear:
        return DividedHead(linear, self._communicator, self._whole_vocab, self._call_head)


class SummedLinear:
    """A product whose input is divided: each rank has some columns of the weight. Rank 0 adds bias
    and residual to its part."""

    __slots__ = ("_communicator", "_linear")

    def __init__(self, linear: Linear, communicator: Communicator) -> None:
        self._linear = linear
        self._communicator = communicator

    @property
    def weight_bytes(self) -> int:
        return self._linear.weight_bytes

    def __call__(self, rows: Tensor) -> Tensor:
        return self._communicator.all_reduce(self._linear(rows))

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        if self._communicator.split.rank:
            return self._communicator.all_reduce(self._linear(rows))
        return self._communicator.all_reduce(self._linear.plus(rows, residual))


class SummedFeedForward:
    """Experts of which each rank has some columns: one sum for all that a row chose."""

    __slots__ = ("_communicator", "_part")

    def __init__(self, part: FeedForward, communicator: Communicator) -> None:
        self._part = part
        self._communicator = communicator

    @property
    def weight_bytes(self) -> int:
        return self._part.weight_bytes

    def __call__(self, rows: Tensor, residual: Tensor | None) -> Tensor:
        mine = residual if self._communicator.split.rank == 0 else None
        return self._communicator.all_reduce(self._part(rows, mine))


class LedLinear:
    """A product that every rank could compute, but where a last bit would decide otherwise: all
    take rank 0's."""

    __slots__ = ("_communicator", "_linear")

    def __init__(self, linear: Linear, communicator: Communicator) -> None:
        self._linear = linear
        self._communicator = communicator

    @property
    def weight_bytes(self) -> int:
        return self._linear.weight_bytes

    def __call__(self, rows: Tensor) -> Tensor:
        product = self._linear(rows)
        self._communicator.broadcast(product)
        return product

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        return self(rows).add_(residual)


class DividedHead:
    """The LM head: each rank has some of the vocabulary, and rank 0 gets all logits. The others
    call it with room for rank 0's rows, and make nothing of what comes back."""

    __slots__ = ("_call", "_communicator", "_linear", "_widths")

    def __init__(
        self,
        linear: Linear,
        communicator: Communicator,
        whole_vocab: int,
        call: CallHead | None,
    ) -> None:
        self._linear = linear
        self._communicator = communicator
        self._call = call
        self._widths = widths_of(whole_vocab, communicator)

    @property
    def weight_bytes(self) -> int:
        return self._linear.weight_bytes

    def __call__(self, rows: Tensor) -> Tensor:
        """rows: (R, hidden), rank 0's, to (R, vocab) on rank 0."""
        if self._call is not None:
            self._call(len(rows))
        self._communicator.broadcast(rows)
        logits = self._communicator.gather(self._linear(rows), self._widths)
        return rows if logits is None else logits

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        return self(rows).add_(residual)


def widths_of(whole: int, communicator: Communicator) -> tuple[int, ...]:
    """How many of `whole` things each rank has."""
    num_ranks = communicator.split.num_ranks
    bounds = [whole * rank // num_ranks for rank in range(num_ranks + 1)]
    return tuple(bounds[rank + 1] - bounds[rank] for rank in range(num_ranks))
