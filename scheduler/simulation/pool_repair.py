"""Repairs for the simulator: what `scheduler.planning.repair` makes of chains that are torn."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from plait.types import LayerSpan
from scheduler.planning.ground import Replica, Wish, replica_figures
from scheduler.planning.repair import Damper, Standing, repair_pool
from scheduler.simulation.pool import Pool
from scheduler.simulation.report import GOOD_TPOT_S
from scheduler.simulation.state import Pipeline


class PoolRepair:
    """Keeps count of who moved lately. Busy nodes of whole chains do not move, as in live
    networks; what a node held before is on its disk."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._damper = Damper()
        self._names = [machine.node_id for machine in pool.ground.machines]
        self._had: dict[str, set[LayerSpan]] = {}

    def __call__(
        self,
        pipelines: Sequence[Pipeline],
        *,
        up: Collection[int],
        busy: Collection[int],
        held: Mapping[int, LayerSpan],
        now_s: float,
    ) -> list[Pipeline]:
        """Whole chains to go on with; `pipelines` are those that stand, some of them broken."""
        members = sorted(up)
        if not members:
            return []
        ground = self._pool.ground
        for i, span in held.items():
            self._had.setdefault(self._names[i], set()).add(span)
        standing = Standing(
            chains=tuple(tuple((self._names[i], len(s)) for i, s in p) for p in pipelines),
            rates=tuple(
                replica_figures(ground, Replica(tuple((i, len(s)) for i, s in p))).rate_per_s
                for p in pipelines
            ),
            cached={
                n: tuple((s.start, s.end) for s in sorted(own)) for n, own in self._had.items()
            },
            stays=frozenset(self._names[i] for i in busy),
            resting=self._damper.resting(now_s),
        )
        now = replace(ground, machines=tuple(ground.machines[i] for i in members))
        repaired = repair_pool(now, standing, Wish(tpot_s_max=GOOD_TPOT_S))
        self._damper.moved(repaired, now_s)
        found: list[Pipeline] = []
        for chain in repaired.plan.chains:
            at, stages = 0, []
            for member, count in zip(chain.members, chain.counts, strict=True):
                stages.append((members[member], LayerSpan(at, at + count)))
                at += count
            found.append(tuple(stages))
        return found
