"""Searches one block of a pool: replicas over kinds first, then with single machines or classes of
links told apart."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduler.planning.assign import Chain, assign, finish
from scheduler.planning.exact import plan_exactly
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.kinds import EXACT_MACHINES_MAX, MachineClass, cut
from scheduler.planning.pack import NoSolverError, Packing, greedy_packing, pack, relax
from scheduler.planning.patterns import Pattern
from scheduler.planning.pricing import generate
from scheduler.planning.table import make_table

SINGLE_MACHINES_MAX: Final = 80
"""Blocks up to this size tell single machines apart, larger ones classes of links."""
WIDE_PATTERNS: Final = 1000
GAP_START: Final = 0.02
"""How far from the best a packing may be that only starts a finer search."""
ENDS_MORE_MAX: Final = 4
LONG_MAX: Final = 32
"""Up to so many stages all ends are tried."""
ROUNDS: Final = 16
ROUNDS_LARGE: Final = 40

Pack = Callable[[Sequence[Pattern], Sequence[MachineClass], float], Packing]
Worth = dict[tuple[str, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A block's chains, its LP bound, and what one more machine of a kind and region adds."""

    chains: list[Chain]
    bound: float
    worth: Worth
    solver: str
    status: str


class Search:
    """The search of one question; `warnings` say what went wrong on the way."""

    def __init__(
        self, ground: Ground, wish: Wish, packer: Pack | None, trouble: str | None = None
    ) -> None:
        """`trouble` says why no solver is to be asked."""
        self._trouble = trouble
        self._ground = ground
        self._wish = wish
        self._packer = packer
        self._table = make_table(ground)
        self._slo = math.inf if wish.tpot_s_max is None else wish.tpot_s_max
        self.warnings: list[str] = []

    def best(self, classes: Sequence[MachineClass], patterns: Sequence[Pattern]) -> Found:
        """The better of the plan over kinds and the one that tells machines apart."""
        num_machines = sum(len(c.members) for c in classes)
        is_single = num_machines <= SINGLE_MACHINES_MAX
        is_exact = num_machines <= EXACT_MACHINES_MAX
        is_wide = len(patterns) > WIDE_PATTERNS
        gap = GAP_START if is_single and is_wide and not is_exact else 0.0
        coarse = self._pack(patterns, classes, 0.0, gap)
        chains = plain = self._concrete(classes, patterns, coarse)
        if is_single and coarse.solver != "greedy":
            # Nodes' own figures may turn the order that their kinds have.
            plain = self._concrete(classes, patterns, greedy_packing(patterns, classes))
        found = Found(
            chains=max(chains, plain, key=_rate),
            bound=coarse.lp_bound,
            worth=self._worth(classes, coarse.prices),
            solver=coarse.solver,
            status=coarse.status,
        )
        if is_exact or coarse.solver == "greedy":
            return found
        fine, parts = cut(self._ground, classes, machines_max=SINGLE_MACHINES_MAX)
        try:
            generated = generate(
                self._ground,
                classes,
                patterns,
                coarse.prices,
                fine,
                parts,
                _as_patterns(fine, chains) if is_single else (),
                rounds=ROUNDS if is_single else ROUNDS_LARGE,
                tpot_s_max=self._slo,
                time_limit_s=self._wish.time_limit_s,
            )
        except NoSolverError as error:
            self.warnings.append(f"planned by kinds only: {error}")
            return found
        if not is_single:
            # Members of a class of links are few: whole uses would cost more than telling them
            # apart brings. The LP says what was left.
            return replace(found, bound=max(generated.lp_bound, coarse.lp_bound))
        packing = self._pack(generated.patterns, fine, _rate(chains), 0.0)
        finer = self._concrete(fine, generated.patterns, packing)
        return replace(
            found,
            chains=max(found.chains, finer, key=_rate),
            bound=generated.lp_bound,
            solver=packing.solver,
            status=packing.status,
        )

    def exhausted(self, classes: Sequence[MachineClass], patterns: Sequence[Pattern]) -> Found:
        """The best plan of a few machines, all of them in `classes`; only its prices need a
        solver."""
        chains = plan_exactly(self._ground, self._wish)
        worth: Worth = {}
        try:
            if self._trouble is not None:
                raise NoSolverError(self._trouble)
            worth = self._worth(
                classes, relax(patterns, classes, time_limit_s=self._wish.time_limit_s)[1]
            )
        except NoSolverError as error:
            self.warnings.append(f"what one more node adds is unknown: {error}")
        return Found(
            chains=chains,
            bound=_rate(chains),
            worth=worth,
            solver="exhaustive",
            status="optimal",
        )

    def plain(self, classes: Sequence[MachineClass], patterns: Sequence[Pattern]) -> list[Chain]:
        """Only the plan over kinds."""
        return self._concrete(classes, patterns, self._pack(patterns, classes, 0.0, 0.0))

    def long(self, free: Sequence[int]) -> list[Chain]:
        """One chain of more stages than patterns have, from the roomiest machines of `free` on;
        empty where not even all of them hold the model."""
        machines = self._ground.machines
        rooms = {i: machines[i].layers_max(is_first=False, is_last=False) for i in free}
        order = sorted((i for i in free if rooms[i] > 0), key=lambda i: (-rooms[i], i))
        if sum(rooms.values()) < self._ground.num_layers:
            return []
        least = len(order)
        while least > 0 and sum(rooms[i] for i in order[: least - 1]) >= self._ground.num_layers:
            least -= 1
        # The ends hold the embedding and the LM head as well: a few more may be needed.
        for size in (*range(least, min(len(order), least + ENDS_MORE_MAX)), len(order)):
            group = order[:size]
            (chain,) = finish(
                self._ground, self._table, [group], tpot_s_max=self._slo, is_quick=size > LONG_MAX
            )
            if chain is not None:
                return [chain]
        return []

    def _pack(
        self,
        patterns: Sequence[Pattern],
        classes: Sequence[MachineClass],
        carried: float,
        gap: float,
    ) -> Packing:
        """The solver's packing, or the greedy one where it does not do its work."""
        limit_s = self._wish.time_limit_s
        try:
            if self._trouble is not None:
                raise NoSolverError(self._trouble)
            if self._packer is not None:
                return self._packer(patterns, classes, limit_s)
            return pack(patterns, classes, time_limit_s=limit_s, carried=carried, gap=gap)
        except NoSolverError as error:
            self.warnings.append(f"planned without the solver: {error}")
            return greedy_packing(patterns, classes)

    def _concrete(
        self, classes: Sequence[MachineClass], patterns: Sequence[Pattern], packing: Packing
    ) -> list[Chain]:
        """The packing's replicas with machines; the greedy ones where it is impossible."""
        try:
            groups = assign(self._ground, classes, _used(patterns, packing))
        except ValueError as error:
            self.warnings.append(f"the solver's packing was refused: {error}")
            groups = assign(
                self._ground, classes, _used(patterns, greedy_packing(patterns, classes))
            )
        chains = finish(self._ground, self._table, groups, tpot_s_max=self._slo)
        return [chain for chain in chains if chain is not None]

    def _worth(self, classes: Sequence[MachineClass], prices: Sequence[float]) -> Worth:
        found: Worth = {}
        for node_class, price in zip(classes, prices, strict=True):
            average = node_class.average
            key = average.kind, self._ground.regions[average.region]
            found[key] = max(found.get(key, 0.0), price)
        return found


def _rate(chains: Sequence[Chain]) -> float:
    return sum(chain.rate for chain in chains)


def _used(patterns: Sequence[Pattern], packing: Packing) -> list[Pattern]:
    return [p for p, use in zip(patterns, packing.uses, strict=True) for _ in range(max(0, use))]


def _as_patterns(fine: Sequence[MachineClass], chains: Sequence[Chain]) -> list[Pattern]:
    """Chains as patterns over single machines."""
    at = {c.members[0]: f for f, c in enumerate(fine)}
    return [Pattern(tuple(at[i] for i in c.members), c.counts, c.rate, c.tpot_s) for c in chains]
