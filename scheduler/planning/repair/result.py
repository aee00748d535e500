"""What a repair hands back."""

from dataclasses import dataclass

import numpy as np

from scheduler.planning.patterns import pad
from scheduler.planning.pool import PoolPlan
from scheduler.planning.repair.ledger import Ledger

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A node's span before (None: it stood by) and after (None: it stands by)."""

    node_id: str
    before: tuple[int, int] | None
    after: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The plan after a repair, and what it takes to get there. `moved_layers` and `moved_bytes`
    have to be loaded; `donors` are members of whole chains that were opened, in order."""

    plan: PoolPlan
    rate_before_per_s: float
    moves: tuple[Move, ...]
    moved_layers: int
    moved_bytes: float
    donors: tuple[Group, ...]

    @property
    def num_survivors_moved(self) -> int:
        """Nodes that held a span and hold another, or none, now."""
        return sum(move.before is not None for move in self.moves)


def repaired(ledger: Ledger) -> Repaired:
    """The ledger's end, as a plan."""
    chains = sorted(ledger.chains, key=lambda c: (-c.rate, c.members))
    moves = tuple(
        Move(
            node_id=ledger.ground.machines[index].node_id,
            before=ledger.held.get(index),
            after=after,
        )
        for index, after in sorted(ledger.moved().items())
    )
    layers, bytes_ = 0, 0.0
    for chain in chains:
        array = pad(ledger.table, [chain.members], len(chain.members))
        counts = np.array([chain.counts], dtype=np.int64)
        layers += int(ledger.costs.layers(array, counts)[0])
        bytes_ += float(ledger.costs.moved_bytes(array, counts)[0])
    rate = sum(chain.rate for chain in chains)
    return Repaired(
        plan=PoolPlan(
            chains=tuple(chains),
            idle=tuple(sorted(ledger.idle)),
            rate_per_s=rate,
            bound_per_s=rate,
            worth=(),
            front=(),
            solver="repair",
            status="feasible",
        ),
        rate_before_per_s=ledger.total_per_s,
        moves=moves,
        moved_layers=layers,
        moved_bytes=bytes_,
        donors=tuple(chain.members for chain in ledger.donors),
    )
