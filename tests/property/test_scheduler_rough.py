"""The rough search against the general and the exact one, and a router that goes on growing."""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plait.types import LayerSpan, NodeId
from scheduler.selection import select_route
from scheduler.selection.board import Board
from scheduler.selection.candidates import Load
from scheduler.selection.decision import How
from scheduler.selection.rough import Rough
from scheduler.selection.router import EXACT_AT_ONCE_MAX, Router
from scheduler.selection.stitched import Stitcher
from scheduler.selection.verify import route_violations
from tests.kit.routes import cost
from tests.property.test_scheduler_stitched import HOP_BYTES, LAYERS, SPEC, draw_net


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_a_chain_is_found_wherever_there_is_one_and_costs_what_it_says(
    seed: int, is_alike: bool
) -> None:
    candidates, links, query = draw_net(seed, 14)
    if is_alike:
        spans = [LayerSpan(0, 3), LayerSpan(3, LAYERS)]
        candidates = [replace(c, span=spans[i % 2]) for i, c in enumerate(candidates)]
    excluded = {NodeId("n01")} if seed % 3 == 0 else set[NodeId]()
    board = Board(candidates, links, num_layers=LAYERS, hop_bytes=HOP_BYTES)
    stitcher = Stitcher(board, LAYERS)
    found = Rough(board, stitcher.ground).best(query, stitcher.figures(), excluded)
    able = [c for c in candidates if c.node_id not in excluded]
    general = select_route(able, query, links)
    assert (found is None) == (general is None)
    if found is None:
        return
    route, total_ms = found
    known = {c.node_id: c for c in able}
    assert not route_violations(known, query, route)
    exact = stitcher.best(query, excluded)
    assert exact is not None
    chain = [known[stage.node_id] for stage in route]
    real_ms = cost(chain, [(s.span.start, s.span.end) for s in route], links, query)
    assert exact[1] <= real_ms * (1 + 1e-9)
    assert abs(total_ms - real_ms) < 1e-6 * real_ms
    nodes = range(len(candidates))
    # Downlinks slower than the uplink before them are not looked at.
    if is_alike and not any(board.excess_ms(a, b) > 0.0 for a in nodes for b in nodes):
        assert real_ms <= exact[1] * (1 + 1e-9)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**9))
def test_a_large_router_answers_at_once_and_exactly_when_it_is_prepared(seed: int) -> None:
    candidates, links, query = draw_net(seed, 90)
    assume(len(candidates) > EXACT_AT_ONCE_MAX)
    router = Router(candidates, links, spec=SPEC, hop_bytes=HOP_BYTES)
    decision = router.route(query)
    assert (decision is None) == (select_route(candidates, query, links) is None)
    while router.grow():
        pass
    full = {s.node_id for c in router.chains.all[::2] for s in c.route}
    for c in router.chains.all:  # of every chain one node is full
        full.add(next((s.node_id for s in c.route if s.node_id in full), c.route[0].node_id))
    for node_id in full:
        assert router.tell(node_id, Load(0))
    able = [c for c in candidates if c.node_id not in full]
    general = select_route(able, query, links)
    first = router.route(query)
    assert (first is None) == (general is None)
    while router.grow():
        pass
    later, exact = router.route(query), router.exact(query)
    if later is None or first is None or exact is None:
        assert general is None
        return
    assert first.how is later.how is How.SEARCH
    assert abs(later.total_ms - exact[1]) < 1e-6 * exact[1] <= 1e-6 * first.total_ms * (1 + 1e-9)
    known = {c.node_id: c for c in able}
    assert not route_violations(known, query, first.route)
    assert not route_violations(known, query, later.route)
