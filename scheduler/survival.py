"""How long nodes stay, and what that makes of a chain: one that loses a member serves nothing until
it is repaired, so it is worth the share of time that all its members are there."""

import math
from collections.abc import Iterable
from typing import Final

REPAIR_S: Final = 300.0
"""What a chain is out for when one of its nodes leaves: noticing, planning, loading."""
PRIOR_SESSION_S: Final = 24 * 3600.0
"""How long a node of which nothing is known is taken to stay."""
SESSION_S_MIN: Final = 60.0


def mean_session_s(ended_s: Iterable[float], *, now_s: float = 0.0) -> float:
    """The expected length of a node's sessions: those that ended, the present one's `now_s` so far,
    and the prior as one more that ended (the mean of an exponential's conjugate posterior)."""
    ended = [s for s in ended_s if math.isfinite(s) and s >= 0.0]
    total = PRIOR_SESSION_S + sum(ended) + max(0.0, now_s)
    return max(SESSION_S_MIN, total / (1 + len(ended)))


def loss(session_s: float | None) -> float:
    """Seconds of repair per second of service that a node causes; 0 where nothing is known."""
    if session_s is None or not math.isfinite(session_s):
        return 0.0
    return REPAIR_S / max(SESSION_S_MIN, session_s)


def up_share(losses: float) -> float:
    """The share of time that a chain serves whose members cause `losses` together (a renewal
    process of failures at the sum of their rates)."""
    return 1.0 / (1.0 + losses)
