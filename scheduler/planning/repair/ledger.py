"""A repair under way: chains that stand, machines that are idle, what has moved so far."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.planning.assign import Chain
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.patterns import pad
from scheduler.planning.price import FINE, rates
from scheduler.planning.repair.standing import Costs, Standing, Terms
from scheduler.planning.table import make_table

Group = tuple[int, ...]
REPLICA_WORTH: Final = 10.0
"""What a replica that is missing to the least number counts, in rates of the whole plan."""
HURT: Final = 0.85
"""A chain that carries less than this share of what it was planned for is looked at again."""


@dataclass(frozen=True, slots=True)
class State:
    """A plan under way."""

    chains: tuple[Chain, ...]
    idle: frozenset[int]
    donors: tuple[Chain, ...]


class Ledger:
    """`held` are spans as they were before the repair: moves are counted from there."""

    def __init__(self, ground: Ground, standing: Standing, wish: Wish, terms: Terms) -> None:
        self.ground, self.terms, self.standing = ground, terms, standing
        self.wish = wish
        self.table = make_table(ground)
        self.tpot_s_max = math.inf if wish.tpot_s_max is None else wish.tpot_s_max
        at = {m.node_id: i for i, m in enumerate(ground.machines)}
        self.held: dict[int, tuple[int, int]] = {}
        self.chains: list[Chain] = []
        self.broken: list[tuple[Group, float]] = []
        """Survivors of each broken chain and what it was planned to carry, the dearest first."""
        self._planned: dict[Group, float] = {}
        whole: list[tuple[Group, Group, float]] = []
        for stages, planned in zip(standing.chains, standing.rates, strict=True):
            members = tuple(at[node_id] for node_id, _ in stages if node_id in at)
            counts = tuple(count for node_id, count in stages if node_id in at)
            self._hold(stages, at)
            if len(members) == len(stages) and sum(counts) == ground.num_layers:
                whole.append((members, counts, planned))
            else:
                self.broken.append((members, planned))
        self._rate(whole)
        self._whole = tuple(self.chains)
        self.broken.sort(key=lambda item: (-item[1], item[0]))
        self.total_per_s = sum(standing.rates)
        placed = {i for chain in self.chains for i in chain.members}
        survivors = {i for group, _ in self.broken for i in group}
        self.idle = {i for i in range(len(ground.machines)) if i not in placed | survivors}
        self.costs = Costs(ground, standing, self.held, terms)
        self.donors: list[Chain] = []

    def _hold(self, stages: Sequence[tuple[str, int]], at: dict[str, int]) -> None:
        start = 0
        for node_id, count in stages:
            if node_id in at:
                self.held[at[node_id]] = (start, start + count)
            start += count

    def _rate(self, whole: Sequence[tuple[Group, Group, float]]) -> None:
        """What whole chains carry now; one that carries nothing any more is broken."""
        if not whole:
            return
        width = max(len(members) for members, _, _ in whole)
        array = pad(self.table, [members for members, _, _ in whole], width)
        split = np.zeros_like(array)
        for row, (_, counts, _) in enumerate(whole):
            split[row, : len(counts)] = counts
        rate, tpot = rates(self.table, array, split, tpot_s_max=self.tpot_s_max, halvings=FINE)
        for row, (members, counts, planned) in enumerate(whole):
            if rate[row] > 0.0:
                self.chains.append(Chain(members, counts, float(rate[row]), float(tpot[row])))
                self._planned[members] = planned
            else:
                self.broken.append((members, planned))

    def hurt(self) -> list[Chain]:
        """Chains that carry clearly less than they were planned for, the worst first."""
        lost = {
            chain.members: self._planned.get(chain.members, chain.rate) - chain.rate
            for chain in self.chains
            if chain.rate < HURT * self._planned.get(chain.members, chain.rate)
        }
        found = [chain for chain in self.chains if chain.members in lost and self.may_open(chain)]
        return sorted(found, key=lambda c: (-lost[c.members], c.members))

    def may_open(self, chain: Chain) -> bool:
        """No member must stay, or rests after a move."""
        ids = {self.ground.machines[i].node_id for i in chain.members}
        return not ids & (self.standing.stays | self.standing.resting)

    def rests(self, index: int) -> bool:
        """The machine moved, or came, lately."""
        return self.ground.machines[index].node_id in self.standing.resting

    def replica_bonus(self, opened: Sequence[Chain]) -> float:
        """What a replica counts more than its rate, where there would be too few."""
        left = len(self.chains) - len(opened)
        return REPLICA_WORTH * self.total_per_s if left < self.terms.replicas_min else 0.0

    def gain(self, opened: Sequence[Chain], made: Sequence[Chain]) -> float:
        """Tokens/s that `made` instead of `opened` brings, after the price of all moves."""
        before = sum(chain.rate - self._price(chain) for chain in opened)
        after = sum(chain.rate - self._price(chain) for chain in made)
        bonus = self.replica_bonus(opened) * (len(made) - len(opened))
        return after - before + bonus - self._dropped(opened, made)

    def _dropped(self, opened: Sequence[Chain], made: Sequence[Chain]) -> float:
        """The price of nodes that stand by afterwards: no bytes, but their requests break."""
        kept = {i for chain in made for i in chain.members}
        gone = [i for chain in opened for i in chain.members if i in self.held and i not in kept]
        running = self.standing.running
        requests = sum(running.get(self.ground.machines[i].node_id, 0) for i in gone)
        share = self.terms.rate_per_request * requests + self.terms.rate_per_move * len(gone)
        return share * self.total_per_s

    def may(self, opened: Sequence[Chain], made: Sequence[Chain], *, is_forced: bool) -> bool:
        """Few enough nodes move, and whole chains are touched for clear gain only."""
        if any(self._price(chain) == math.inf for chain in made):
            return False
        if opened and len(self._moved(opened, made)) > self.terms.moved_max:
            return False
        if is_forced or not opened:
            return True
        before = sum(chain.rate for chain in opened)
        return sum(chain.rate for chain in made) >= self.terms.gain_min * before

    def apply(self, opened: Sequence[Chain], made: Sequence[Chain]) -> None:
        """Carry it out."""
        self.chains = [c for c in self.chains if c not in opened] + list(made)
        self.donors += [c for c in opened if c in self._whole and c not in made]
        placed = {i for chain in self.chains for i in chain.members}
        self.idle = {i for i in range(len(self.ground.machines)) if i not in placed}

    def free(self, survivors: Group) -> None:
        """Survivors of a broken chain become idle, but for those that were given a place since."""
        placed = {i for chain in self.chains for i in chain.members}
        self.idle |= set(survivors) - placed

    def state(self) -> State:
        """As it is now."""
        return State(tuple(self.chains), frozenset(self.idle), tuple(self.donors))

    def restore(self, state: State) -> None:
        """Back to what `state` gave."""
        self.chains, self.idle = list(state.chains), set(state.idle)
        self.donors = list(state.donors)

    def moved(self) -> dict[int, tuple[int, int] | None]:
        """Machines whose span changed, with the new one."""
        return self._moved((), ())

    def _moved(
        self, opened: Sequence[Chain], made: Sequence[Chain]
    ) -> dict[int, tuple[int, int] | None]:
        now: dict[int, tuple[int, int]] = {}
        for chain in [c for c in self.chains if c not in opened] + list(made):
            start = 0
            for index, count in zip(chain.members, chain.counts, strict=True):
                now[index] = (start, start + count)
                start += count
        return {
            index: now.get(index)
            for index in range(len(self.ground.machines))
            if now.get(index) != self.held.get(index)
        }

    def _price(self, chain: Chain) -> float:
        array = pad(self.table, [chain.members], len(chain.members))
        counts = np.array([chain.counts], dtype=np.int64)
        return float(self.costs.price(array, counts, self.total_per_s)[0])
