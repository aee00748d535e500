"""What would change if a plan were made: the question with what is supposed in it, and how the
answer differs from what is held. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Final

from coordinator.core.view import NetworkView
from plait.errors import InvalidRequestError
from plait.types import DType, NodeId, NodeProfile
from scheduler.allocation.moves import moved
from scheduler.allocation.problem import Allocation, AllocationProblem, Placement

NEWCOMER: Final = "newcomer "
NEWCOMERS_MAX: Final = 64
GIB: Final = 1 << 30
MEMORY_GIB_MAX: Final = 4_096.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Supposed:
    """`without` are nodes that leave; `num_more` nodes of `memory_bytes` each come. `may_move_busy`
    plans as if no request ran."""

    without: tuple[str, ...] = ()
    num_more: int = 0
    memory_bytes: int = 0
    may_move_busy: bool = False

    @property
    def is_as_things_are(self) -> bool:
        """Whether asking for a plan would ask just this."""
        return not (self.without or self.num_more or self.may_move_busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A node's layers before and after; None: none. `read_bytes` of weights are loaded."""

    node_id: str
    before: Placement | None
    after: Placement | None
    read_bytes: int


def parse_supposed(fields: Mapping[str, str], names: Mapping[str, str]) -> Supposed:
    """What a form says; `names` are the display names of nodes that are here, by id.

    Raises InvalidRequestError that names the field.
    """
    without = [_node(word.strip(), names) for word in fields.get("without", "").split(",") if word]
    num_more = _number(fields.get("more", "") or "0", "more nodes", NEWCOMERS_MAX)
    memory = _number(fields.get("memory_gib", "") or "8", "GiB of memory", MEMORY_GIB_MAX)
    if num_more and memory <= 0:
        raise InvalidRequestError("a node that comes needs memory above 0 GiB", param="memory_gib")
    return Supposed(
        without=tuple(dict.fromkeys(without)),
        num_more=int(num_more),
        memory_bytes=int(memory * GIB),
        may_move_busy=fields.get("busy") == "yes",
    )


def suppose(problem: AllocationProblem, supposed: Supposed) -> AllocationProblem:
    """The question with nodes gone and others come."""
    gone = set(supposed.without)
    stay = tuple(node for node in problem.nodes if node.node_id not in gone)
    pattern = _pattern(stay)
    came = tuple(
        replace(
            pattern,
            node_id=NodeId(f"{NEWCOMER}{number}"),
            display_name=f"{NEWCOMER}{number}",
            memory_bytes=supposed.memory_bytes,
        )
        for number in range(1, supposed.num_more + 1)
    )
    return replace(
        problem,
        nodes=(*stay, *came),
        held=tuple(held for held in problem.held if held.node_id not in gone),
        fixed=tuple(node_id for node_id in problem.fixed if node_id not in gone),
        cached=tuple(cached for cached in problem.cached if cached.node_id not in gone),
        mean_session_s=tuple(each for each in problem.mean_session_s if each[0] not in gone),
        rtt_ms=tuple(each for each in problem.rtt_ms if not gone.intersection(each[0])),
        bytes_per_s=tuple(each for each in problem.bytes_per_s if not gone.intersection(each[0])),
    )


def changes_of(problem: AllocationProblem, plan: Allocation) -> list[Change]:
    """Nodes that would hold something else than they do, in the order of the plan."""
    before = {held.node_id: held for held in problem.held}
    after = {placed.node_id: placed for placed in plan.placements}
    profiles = {node.node_id: node for node in problem.nodes}
    found: list[Change] = []
    for node_id in dict.fromkeys((*after, *before)):
        old, new = before.get(node_id), after.get(node_id)
        if old and new and (old.model_id, old.span) == (new.model_id, new.span):
            continue
        # Of its own small question: `moved` looks at all nodes of the one it is given.
        alone = replace(
            problem,
            nodes=(profiles[node_id],),
            held=(old,) if old else (),
            cached=tuple(c for c in problem.cached if c.node_id == node_id),
        )
        read_bytes = moved(alone, (new,)).num_bytes if new else 0
        found.append(Change(node_id=node_id, before=old, after=new, read_bytes=read_bytes))
    return found


def fingerprint(view: NetworkView) -> int:
    """Differs where nodes have come, gone or changed what they hold: a preview is then old."""
    return hash(
        tuple(
            sorted((n.node_id, n.incarnation, n.model_id or "", n.span or ()) for n in view.nodes)
        )
    )


def _node(word: str, names: Mapping[str, str]) -> str:
    if word in names:
        return word
    found = [node_id for node_id, name in names.items() if name.lower() == word.lower()]
    if len(found) != 1:
        what = "no node" if not found else f"{len(found)} nodes, by id,"
        raise InvalidRequestError(
            f"{what} {word!r} is attached: the list of nodes has their names and ids",
            param="without",
        )
    return found[0]


def _number(word: str, what: str, most: float) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:  # nan is neither
        raise InvalidRequestError(f"{what}: a number from 0 to {most:g}, not {word!r}")
    return value


def _pattern(nodes: tuple[NodeProfile, ...]) -> NodeProfile:
    """A node like the middle one that is there; without any, a modest graphics card."""
    if nodes:
        size = median_low([node.memory_bytes for node in nodes])
        return next(node for node in nodes if node.memory_bytes == size)
    return NodeProfile(
        node_id=NodeId(NEWCOMER),
        display_name="",
        device_kind="cuda",
        device_name="",
        memory_bytes=0,
        memory_bytes_per_s=3e11,
        flops_per_s=2e13,
        compute_dtype=DType.FLOAT32,
        coordinator_rtt_ms=30.0,
        up_bytes_per_s=2e6,
        down_bytes_per_s=1e7,
        timings=(),
        addresses=(),
    )
