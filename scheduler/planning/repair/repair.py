"""Repairs a pool's plan: after a leave, a join, a slowdown, a new wish.

Free are the survivors of a broken chain and idle machines, and one replica at a time may give its
machines (a donor). Each donor's machines are regrouped with the free ones (`regroup.py`); the best
is carried out where it gains more than its moves cost. Up to `Terms.rounds` donors follow one
another, while few nodes have moved.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.planning.assign import Chain
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.kinds import link_cost_s
from scheduler.planning.repair.ledger import Ledger, State
from scheduler.planning.repair.regroup import FEW, GROUP_MAX, Group, Packed, Regroup
from scheduler.planning.repair.result import Repaired, repaired
from scheduler.planning.repair.spares import fill_with_spares
from scheduler.planning.repair.splits import chains_of
from scheduler.planning.repair.standing import Standing, Terms

DONORS_MAX: Final = 16
"""Donors that are priced; the nearest by round trip."""
PACKINGS: Final = 3
"""Packings of each donor that are looked at."""
FINALISTS: Final = 6
"""Packings of a round that are worked out exactly."""
WAYS: Final = 1
SIDEWAYS: Final = 3
"""Ways that are followed from round to round: gains, or else small losses."""
SIDE_LOSS: Final = 0.02
"""What a first step may lose of the plan's rate."""
LATE_SHARE: Final = 0.6
"""Third and later rounds only while no larger share of the moves is used up."""
EPSILON: Final = 1e-9


@dataclass(frozen=True, slots=True)
class _Offer:
    """Chains of the plan that are opened, how their machines and the free ones would be packed,
    and at what rough gain."""

    opened: tuple[Chain, ...]
    packed: Packed
    gain: float


@dataclass(frozen=True, slots=True)
class _Way:
    """Where some steps lead, what they gain in all, and the chains that the last one made."""

    state: State
    gain: float
    fresh: tuple[Chain, ...]


def repair_pool(
    ground: Ground, standing: Standing, wish: Wish | None = None, terms: Terms | None = None
) -> Repaired:
    """The plan to go on with. Always a plan: where nothing is worth a move, the one that stands,
    less its broken chains."""
    ledger = Ledger(ground, standing, wish or Wish(), terms or Terms())
    return _Repair(ledger).run()


class _Repair:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._regroup = Regroup(
            ledger.ground,
            ledger.table,
            ledger.costs,
            total_per_s=ledger.total_per_s,
            wish=ledger.wish,
        )

    def run(self) -> Repaired:
        ledger = self._ledger
        for broken, planned in ledger.broken:
            ledger.free(broken)
            survivors = tuple(i for i in broken if i in ledger.idle)
            if survivors == broken and fill_with_spares(ledger, survivors, planned):
                continue
            self._rounds(survivors, is_forced=True)
        if not ledger.broken:
            for chain in ledger.hurt():
                self._rounds((), is_forced=False, opened=(chain,))
            if ledger.idle:
                self._rounds((), is_forced=False)
        return repaired(ledger)

    def _rounds(self, survivors: Group, *, is_forced: bool, opened: tuple[Chain, ...] = ()) -> None:
        """One donor after the other. What a round made is what the next one goes on from; a few
        ways are followed, and the best end is taken."""
        ledger = self._ledger
        ends = [_Way(ledger.state(), 0.0, ())]
        ways = ends
        for number in range(ledger.terms.rounds):
            found: dict[frozenset[Chain], _Way] = {}
            for way in ways:
                ledger.restore(way.state)
                if number > 1 and len(ledger.moved()) > LATE_SHARE * ledger.terms.moved_max:
                    continue  # little may move any more
                starts: list[tuple[Chain, ...]] = [(chain,) for chain in way.fresh]
                if not number or ledger.idle:
                    starts.append(() if number else opened)
                free = () if number else survivors
                for step in self._round(free, starts, is_forced=is_forced, is_start=not number):
                    better = _Way(step.state, way.gain + step.gain, step.fresh)
                    found.setdefault(frozenset(step.state.chains), better)
            ways = sorted(found.values(), key=lambda w: -w.gain)
            if not ways:
                break
            ends += ways
            ways = ways[: WAYS if ways[0].gain > 0.0 else SIDEWAYS]
        ledger.restore(max(ends, key=lambda way: way.gain).state)

    def _round(
        self,
        survivors: Group,
        starts: Sequence[tuple[Chain, ...]],
        *,
        is_forced: bool,
        is_start: bool,
    ) -> list["_Way"]:
        """The best steps over all donors, each with the chains that it made. The first of a
        broken chain may lose a little: it may be what makes a better one possible."""
        ledger = self._ledger
        for chain in ledger.chains:
            self._regroup.know(chain.members, chain.rate)
        asked: list[tuple[Group, tuple[Chain, ...]]] = []
        for opened in starts:
            inside = tuple(i for chain in opened for i in chain.members)
            for donor in [None, *self._donors(survivors + inside, opened)]:
                touched = opened if donor is None else (*opened, donor)
                size = sum(len(chain.members) for chain in touched)
                is_quiet = bool(touched) and not is_forced
                free = self._free(survivors, inside, GROUP_MAX - size, is_quiet=is_quiet)
                if size + len(free) <= GROUP_MAX and size + len(free) > 0:
                    asked.append((free, touched))
        self._regroup.learn(self._members(free, touched) for free, touched in asked)
        offers: list[_Offer] = []
        least = ledger.total_per_s * (-SIDE_LOSS if is_start and is_forced else EPSILON)
        for free, touched in asked:
            members = self._members(free, touched)
            before = sum(chain.rate for chain in touched)
            bonus = ledger.replica_bonus(touched)
            packings = self._regroup.best(members, count=PACKINGS, bonus=bonus)
            for packed in packings:
                gain = packed.value - before + bonus * (len(packed.groups) - len(touched))
                is_new = set(packed.groups) != {tuple(sorted(c.members)) for c in touched}
                if is_new and gain > least:
                    offers.append(_Offer(touched, packed, gain))
        offers.sort(key=lambda o: (-o.gain, len(o.opened), o.packed.groups))
        alone = [
            _Offer((), packed, packed.value)
            for free, touched in asked
            if not touched and len(free) <= FEW and is_start
            for packed in self._regroup.alone(free)
        ]
        return self._steps([*offers[:FINALISTS], *alone], least, is_forced=is_forced)

    def _steps(self, offers: Sequence[_Offer], least: float, *, is_forced: bool) -> list["_Way"]:
        """Offers worked out exactly, those that may be carried out and gain, the best first."""
        ledger = self._ledger
        groups = list(dict.fromkeys(g for offer in offers for g in offer.packed.groups))
        if not groups:
            return []
        standing = {tuple(sorted(chain.members)): chain for chain in ledger.chains}
        made = dict(zip(groups, chains_of(ledger, groups), strict=True))
        found: list[tuple[float, _Offer, list[Chain]]] = []
        for offer in offers:
            own: list[tuple[float, _Offer, list[Chain]]] = []
            choices = [
                (standing[g],) if g in standing else dict.fromkeys(made[g])
                for g in offer.packed.groups
            ]
            for choice in itertools.product(*choices):
                chains = [chain for chain in choice if chain is not None]
                gain = ledger.gain(offer.opened, chains)
                if gain > least and ledger.may(offer.opened, chains, is_forced=is_forced):
                    own.append((gain, offer, chains))
            found += sorted(own, key=lambda step: -step[0])[:1]
        steps: list[_Way] = []
        before = ledger.state()
        for gain, offer, chains in sorted(found, key=lambda step: -step[0])[:SIDEWAYS]:
            ledger.apply(offer.opened, chains)
            fresh = tuple(chain for chain in chains if chain not in offer.opened)
            steps.append(_Way(ledger.state(), gain, fresh))
            ledger.restore(before)
        return steps

    def _members(self, free: Group, touched: Sequence[Chain]) -> Group:
        return tuple(sorted((*free, *(i for chain in touched for i in chain.members))))

    def _donors(self, near: Group, opened: Sequence[Chain]) -> list[Chain]:
        """Chains that may give their machines, the nearest first."""
        ledger = self._ledger
        others = [c for c in ledger.chains if c not in opened and ledger.may_open(c)]
        anchors = near or tuple(sorted(ledger.idle))
        machines = ledger.ground.machines
        regions = sorted({machines[i].region for i in anchors})

        def distance(chain: Chain) -> tuple[float, Group]:
            trips = [
                ledger.ground.region_rtt_s[machines[i].region][r]
                for i in chain.members
                for r in regions
            ]
            return (min(trips, default=0.0), chain.members)

        return sorted(others, key=distance)[:DONORS_MAX]

    def _free(self, survivors: Group, near: Group, most: int, *, is_quiet: bool) -> Group:
        """Survivors, then as many idle machines as fit: the nearest with most room first. For a
        mere gain (`is_quiet`) none that came or moved lately."""
        ledger = self._ledger
        machines = ledger.ground.machines
        anchors = survivors or near

        def rank(index: int) -> tuple[bool, float, float, float, int]:
            machine = machines[index]
            trips = [
                ledger.ground.region_rtt_s[machine.region][machines[i].region] for i in anchors
            ]
            return (
                index not in survivors,
                min(trips, default=0.0),
                -machine.room_bytes,
                link_cost_s(ledger.ground, machine),
                index,
            )

        idle = [i for i in ledger.idle if not (is_quiet and ledger.rests(i))]
        return tuple(sorted(sorted(idle, key=rank)[: max(0, most)]))
