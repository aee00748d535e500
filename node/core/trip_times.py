"""How long a token takes round a chain, and what each guess beside it adds: a line through the
trips of late."""

from collections import OrderedDict
from typing import Final

from plait.types import NodeId

ROW_SHARE: Final = 0.1
"""What a guess is taken to add to a trip while nothing is known, as a share of it."""

_KEPT: Final = 0.97
_PRIOR_WEIGHT: Final = 20.0
_OUTLIER: Final = 3.0
_CHAINS_MAX: Final = 64


class TripTimes:
    """Least squares over (guesses, ms), the older the less, drawn towards `ROW_SHARE` where trips
    tell little."""

    __slots__ = ("_count", "_k", "_kk", "_kt", "_t")

    def __init__(self) -> None:
        self._count = self._k = self._t = self._kk = self._kt = 0.0

    def add(self, num_guesses: int, trip_ms: float) -> None:
        """Take in a trip. What takes very long waited for something else."""
        if self._count >= 1.0:
            base_ms, row_ms = self.line()
            trip_ms = min(trip_ms, _OUTLIER * (base_ms + row_ms * num_guesses) + 1.0)
        self._count = _KEPT * self._count + 1.0
        self._k = _KEPT * self._k + num_guesses
        self._t = _KEPT * self._t + trip_ms
        self._kk = _KEPT * self._kk + num_guesses**2
        self._kt = _KEPT * self._kt + num_guesses * trip_ms

    def line(self) -> tuple[float, float]:
        """(ms of a trip without guesses, ms for each guess); in no unit while nothing is known."""
        if self._count == 0.0 or self._t <= 0.0:
            return 1.0, ROW_SHARE
        mean_k, mean_t = self._k / self._count, self._t / self._count
        spread = self._kk - self._k * mean_k
        together = self._kt - self._k * mean_t
        prior_ms = ROW_SHARE * mean_t / (1.0 + ROW_SHARE * mean_k)
        row_ms = max(0.0, (together + _PRIOR_WEIGHT * prior_ms) / (spread + _PRIOR_WEIGHT))
        return max(mean_t - row_ms * mean_k, 0.1 * mean_t), row_ms


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
