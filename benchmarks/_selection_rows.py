"""What is measured of choosing a chain, and what it may take."""

from dataclasses import dataclass
from typing import Final

SIZES: Final = (64, 128, 1_000, 10_000)
EXACT_BAR_US: Final = {64: 25.0, 128: 100.0, 1_000: 450.0, 10_000: 8_000.0}
CHAINS_BAR_US: Final = 20.0
REFERENCE_TURN_NS: Final = 30.0
REBUILD_BAR_MS: Final = {200: 20.0, 1_000: 100.0}
REBUILD_SIZES: Final = (100, 200, 1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Microseconds, medians. `exact_mixed`: some downlinks are slower than some uplinks.
    `exact_told`: with news of five nodes since the last request. `choose`, `reserve`, `release`: a
    ready chain chosen for an interactive request, its nodes told, and told again at the end."""

    num_nodes: int
    exact_us: float
    exact_p95_us: float
    exact_mixed_us: float
    exact_told_us: float
    choose_us: float
    reserve_us: float
    release_us: float
    turn_ns: float
    ready_turn_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRow:
    """Spans that overlap. `prepare_ms`: what nodes that come, go or move cost the first request."""

    num_nodes: int
    ground: str
    num_spans: int
    exact_us: float
    exact_p95_us: float
    exact_told_us: float
    prepare_ms: float
    turn_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A router over other spans than before, until its first answer, and the longest of the later
    answers that still look for chains to keep ready; CPU time, milliseconds."""

    num_nodes: int
    ground: str
    first_ms: float
    later_ms_max: float
    num_later: int
    num_chains: int


def at_reference(taken_us: float, turn_ns: float) -> float:
    """Where a turn of the reference loop takes 30 ns."""
    return taken_us * REFERENCE_TURN_NS / turn_ns
