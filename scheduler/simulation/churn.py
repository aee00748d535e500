"""Nodes that leave without a word and come back later."""

from dataclasses import dataclass
from random import Random
from typing import Final

AWAY_S: Final = 1_200.0
"""How long a node stays away, on average."""


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """A node (its place in the pool) leaves or comes back."""

    at_s: float
    node: int
    is_leave: bool


def draw_churn(
    *, num_nodes: int, leaves_per_hour: float, duration_s: float, seed: int
) -> tuple[Change, ...]:
    """`leaves_per_hour` is the share of nodes that leave in an hour. In order of time."""
    if leaves_per_hour <= 0.0:
        return ()
    changes: list[Change] = []
    for node in range(num_nodes):
        rng = Random(f"churn {seed} {node}")
        at_s = rng.expovariate(leaves_per_hour / 3_600.0)
        while at_s < duration_s:
            changes.append(Change(at_s, node, is_leave=True))
            at_s += rng.expovariate(1.0 / AWAY_S)
            if at_s < duration_s:
                changes.append(Change(at_s, node, is_leave=False))
            at_s += rng.expovariate(leaves_per_hour / 3_600.0)
    return tuple(sorted(changes))
