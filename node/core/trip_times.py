"""How long a token takes round a chain, and what each guess beside it adds."""

from collections import OrderedDict
from typing import Final

from plait.types import NodeId

ROW_SHARE: Final = 0.1
"""What a guess is taken to add to a trip while nothing is known, as a share of it."""

_KEPT: Final = 0.97
_BASE_KEPT: Final = 0.99
_BASE_SHARE: Final = 0.1
_BASE_LEAST: Final = 0.5
_BASE_FIRST: Final = 3
_PRIOR_WEIGHT: Final = 20.0
_OUTLIER: Final = 3.0
_CHAINS_MAX: Final = 64


class TripTimes:
    """The mean of trips without guesses, and least squares over what those with guesses took beyond
    it; the older a trip, the less it counts.

    Both cannot be told from trips with guesses alone: `needs_base` asks for one without, now and
    then.
    """

    __slots__ = ("_base", "_base_count", "_k", "_kk", "_kt", "_num_base")

    def __init__(self) -> None:
        self._base = self._base_count = self._k = self._kk = self._kt = 0.0
        self._num_base = 0

    @property
    def needs_base(self) -> bool:
        """Whether a trip without guesses is due."""
        return self._num_base < _BASE_FIRST or self._base_count < _BASE_LEAST

    def add(self, num_guesses: int, trip_ms: float) -> None:
        """Take in a trip. What takes very long waited for something else."""
        if self._num_base:
            base_ms, row_ms = self.line()
            trip_ms = min(trip_ms, _OUTLIER * (base_ms + row_ms * num_guesses) + 1.0)
        self._base_count *= _BASE_KEPT
        if num_guesses == 0:
            self._num_base += 1
            share = max(1.0 / (1.0 + self._base_count), _BASE_SHARE)
            self._base += share * (trip_ms - self._base)
            self._base_count += 1.0
            return
        self._k = _KEPT * self._k + num_guesses
        self._kk = _KEPT * self._kk + num_guesses**2
        self._kt = _KEPT * self._kt + num_guesses * trip_ms

    def line(self) -> tuple[float, float]:
        """(ms of a trip without guesses, ms for each guess); in no unit while nothing is known."""
        if self._base <= 0.0:
            return 1.0, ROW_SHARE
        beyond = self._kt - self._base * self._k + _PRIOR_WEIGHT * ROW_SHARE * self._base
        return self._base, max(0.0, beyond / (self._kk + _PRIOR_WEIGHT))


class ChainTrips:
    """Trips of the chains that begin here; the least recently used are forgotten."""

    def __init__(self) -> None:
        self._chains: OrderedDict[tuple[NodeId, ...], TripTimes] = OrderedDict()

    def of(self, chain: tuple[NodeId, ...]) -> TripTimes:
        """Shared by all requests over one chain."""
        trips = self._chains.setdefault(chain, TripTimes())
        self._chains.move_to_end(chain)
        if len(self._chains) > _CHAINS_MAX:
            self._chains.popitem(last=False)
        return trips
