"""Which chains are worth keeping ready, found one by one: looking for them takes a search each.

A search takes a millisecond or more where spans overlap, and nobody waits for all of them: a router
goes on with the first few and looks for another one with each request.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from plait.types import NodeId, Route
from scheduler.handover import handed_over
from scheduler.selection.board import Board
from scheduler.selection.candidates import Candidate
from scheduler.selection.chains import CHAINS_MAX, Chain

TYPICAL_PROMPT_TOKENS: Final = 512
TYPICAL_NEW_TOKENS: Final = 128
FRUITLESS_MAX: Final = 8
"""Searches in a row that may find nothing new, before the search for more chains ends."""

Search = Callable[[Collection[NodeId]], Route | None]
"""The cheapest chain of a typical request without some nodes."""


def planned_chains(
    board: Board, planned: Sequence[tuple[Sequence[NodeId], float]], num_layers: int
) -> list[Chain]:
    """Those of the plan that are whole, each with its share of the load."""
    found: dict[Route, float] = {}
    for node_ids, weight in planned:
        route = whole_route(board, node_ids, num_layers)
        if route is not None and weight > 0.0:
            found.setdefault(route, weight)
    return [Chain(route, weight) for route, weight in found.items()]


def find_chains(board: Board, known: Sequence[Chain], search: Search) -> Iterator[Chain | None]:
    """Beside those that are known the cheapest that share no node, then one over each node that
    still has none, then for each node the cheapest that goes round it.

    After each search the chain that it found, None where it is no new one.
    """
    found = dict.fromkeys(chain.route for chain in known[:CHAINS_MAX])
    weight = min((chain.weight for chain in known), default=1.0)
    used = {stage.node_id for route in found for stage in route}
    while len(found) < CHAINS_MAX:
        route = search(used)
        if route is None:
            break
        found[route] = None
        used.update(stage.node_id for stage in route)
        yield Chain(route, weight)

    def more(searched: Iterable[Collection[NodeId]]) -> Iterator[Chain | None]:
        """While that bears fruit."""
        fruitless = 0
        for excluded in searched:
            if len(found) >= CHAINS_MAX or fruitless >= FRUITLESS_MAX:
                return
            route = search(excluded)
            if route is None or route in found:
                fruitless += 1
                yield None
                continue
            fruitless = 0
            found[route] = None
            used.update(stage.node_id for stage in route)
            yield Chain(route, weight)

    yield from more(_alike(board, c) for c in board.candidates if c.node_id not in used)
    yield from more({stage.node_id} for route in list(found) for stage in route)


def _alike(board: Board, candidate: Candidate) -> set[NodeId]:
    """All others that hold the same layers."""
    return {
        c.node_id
        for c in board.candidates
        if c.span == candidate.span and c.node_id != candidate.node_id
    }


def whole_route(board: Board, node_ids: Sequence[NodeId], num_layers: int) -> Route | None:
    """The stages of nodes, or None where they do not fit together now."""
    found = [board.index(node_id) for node_id in node_ids]
    known = [index for index in found if index is not None]
    spans = handed_over([board.candidates[index].span for index in known], num_layers)
    if spans is None or len(known) < len(found):
        return None
    return board.part_route([(i, span.end) for i, span in zip(known, spans, strict=True)])
