"""What was decided about a request and why: small, bounded, written out only when asked for."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from plait.types import NodeId, Route
from scheduler.selection.chains import Chain, Obstacle
from scheduler.selection.evidence import Evidence, Parts, parts
from scheduler.selection.groups import INFINITE

SHOWN_MAX: Final = 6


class How(StrEnum):
    """By which way a route was found."""

    CHAIN = "chain"
    AFFINITY = "affinity"
    SEARCH = "search"


class Decision(NamedTuple):
    """One choice; a tuple, because every request makes one. `totals[i]` is what `chains[i]` was
    priced at, infinite where it could not be used; both are shared with later decisions as long as
    the chains stay the same. `held_tokens` of the prompt are in the chain's KV already."""

    how: How
    route: Route
    total_ms: float
    ttft_ms: float
    token_ms: float
    chains: tuple[Chain, ...] = ()
    totals: tuple[float, ...] = ()
    num_excluded: int = 0
    held_tokens: int = 0
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A chain that was considered, for people."""

    nodes: tuple[NodeId, ...]
    total_ms: float | None
    note: str
    parts: Parts | None = None
    obstacle: Obstacle | None = None


def priced(decision: Decision) -> tuple[Priced, ...]:
    """The chosen chain and its cheapest rivals, dearest last; those without room after them."""
    order = sorted(range(len(decision.totals)), key=lambda c: (decision.totals[c], c))
    shown: list[Priced] = []
    for c in order[:SHOWN_MAX]:
        chain, total = decision.chains[c], decision.totals[c]
        evidence = decision.evidence
        obstacle = evidence.obstacles.get(c) if evidence is not None else None
        shown.append(
            Priced(
                nodes=chain.node_ids,
                total_ms=total if total < INFINITE else None,
                note=obstacle.why if obstacle is not None else _note(decision, chain, total),
                parts=parts(evidence, c) if evidence is not None else None,
                obstacle=obstacle,
            )
        )
    return tuple(shown)


def why(decision: Decision) -> str:
    """One sentence."""
    usable = sum(total < INFINITE for total in decision.totals)
    known = len(decision.totals)
    avoided = f"; {decision.num_excluded} nodes avoided" if decision.num_excluded else ""
    match decision.how:
        case How.SEARCH:
            text = f"none of {known} ready chains could take it: searched all nodes"
        case How.AFFINITY:
            text = (
                f"holds the prompt's first {decision.held_tokens} tokens, of {usable} usable chains"
            )
        case How.CHAIN:
            is_least = decision.total_ms <= min(decision.totals, default=INFINITE)
            turn = "the cheapest" if is_least else "its turn among those near the cheapest"
            text = f"{turn} of {usable} usable chains ({known} ready)"
    return text + avoided


def _note(decision: Decision, chain: Chain, total: float) -> str:
    if chain.route == decision.route:
        return "chosen"
    if total == INFINITE:
        return "no room, or avoided"
    if total < decision.total_ms:
        return "not its turn"
    return f"{total - decision.total_ms:.0f} ms dearer"
