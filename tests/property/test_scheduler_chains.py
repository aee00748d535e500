"""Chains kept ready, after any news, against chains that are summed up from nothing; and whose turn
it is against the rule written out."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.selection import Candidate
from scheduler.selection.board import Board
from scheduler.selection.candidates import Promise
from scheduler.selection.chains import NEAR, Chain, Chains
from scheduler.selection.groups import INFINITE
from scheduler.selection.router import Router
from tests.property.test_scheduler_stitched import HOP_BYTES, LAYERS, SLOW, draw_load, draw_net


def news_of(candidate: Candidate, rng: Random) -> Candidate:
    """Another load, now and then another cost."""
    told = replace(candidate, **draw_load(rng)._asdict())
    return replace(told, cost=SLOW) if rng.random() < 0.1 else told


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([None, Promise(5_000.0, 300.0)]))
def test_ready_chains_are_priced_as_if_summed_up_anew(seed: int, promise: Promise | None) -> None:
    candidates, links, query = draw_net(seed, 8)
    query = replace(query, promise=promise)
    router = Router(candidates, links, spec=query.spec, hop_bytes=HOP_BYTES)
    known = {c.node_id: c for c in candidates}
    rng = Random(seed)
    for _ in range(4):
        for node_id in rng.sample(sorted(known), rng.randrange(1, len(known) + 1)):
            known[node_id] = news_of(known[node_id], rng)
            if known[node_id].cost is not SLOW:
                assert router.tell(node_id, known[node_id].load)
            else:
                assert router.update(known[node_id])
        board = Board(list(known.values()), links, num_layers=LAYERS, hop_bytes=HOP_BYTES)
        anew = Chains(board, router.chains.all)
        assert router.chains.totals(query) == anew.totals(query)


def turns(
    totals: list[list[float]], weights: list[float], credits_: list[float]
) -> list[int | None]:
    """Who is near the cheapest earns its weight; the richest is taken and pays for all."""
    taken: list[int | None] = []
    for row in totals:
        near = [c for c, total in enumerate(row) if total <= NEAR * min(row)]
        if min(row) == INFINITE:
            taken.append(None)
            continue
        for c in near:
            credits_[c] += weights[c]
        richest = max(near, key=lambda c: credits_[c])
        credits_[richest] -= sum(weights[c] for c in near)
        taken.append(richest)
    return taken


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_chains_take_turns_by_their_weights(seed: int) -> None:
    candidates, links, query = draw_net(seed, 8)
    found = Router(candidates, links, spec=query.spec, hop_bytes=HOP_BYTES).chains
    rng = Random(seed)
    weights = [float(rng.randrange(1, 5)) for _ in found.all]
    if not weights:
        assert found.turn([]) is None
        return
    board = Board(candidates, links, num_layers=LAYERS, hop_bytes=HOP_BYTES)
    chains = Chains(board, [Chain(one.route, w) for one, w in zip(found.all, weights, strict=True)])
    prices = (100.0, 105.0, 109.0, 120.0, INFINITE)
    totals = [[rng.choice(prices) for _ in weights] for _ in range(20)]
    assert [chains.turn(row) for row in totals] == turns(totals, weights, [0.0] * len(weights))
