"""Whole spans by groups, against a twin that tries every chain of nodes."""

import itertools
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from plait.types import LayerSpan, NodeId
from scheduler.cost import Links, stage_cost
from scheduler.selection import Candidate, Query, select_route
from scheduler.selection.board import Board
from scheduler.selection.places import Places
from scheduler.selection.verify import route_violations
from tests.kit.routes import cost
from tests.unit.scheduler.pools import node, tiny_model

LAYERS = 6
HOP_BYTES = 1_152
SPEC = tiny_model(LAYERS)
REGIONS_MS = ((2.0, 60.0, 90.0), (60.0, 4.0, 120.0), (80.0, 110.0, 3.0))


def crowd(seed: int, *, has_places: bool, has_pairs: bool) -> tuple[list[Candidate], Links, Query]:
    """A small net with everything that can differ between nodes."""
    rng = Random(seed)
    cuts = sorted(rng.sample(range(1, LAYERS), rng.randrange(0, 4)))
    spans = [LayerSpan(a, b) for a, b in itertools.pairwise((0, *cuts, LAYERS))]
    extra = [LayerSpan(a, b) for a, b in itertools.combinations((0, *cuts, LAYERS), 2)]
    candidates, profiles = [], []
    for i in range(rng.randrange(1, 9)):
        profile = node(
            f"n{i}",
            layer_ms=rng.choice((0.5, 1.0, 4.0)),
            rtt_ms=rng.choice((1.0, 9.0, 30.0)),
            up_bytes_per_s=rng.choice((1e4, 1e5, 1e6)),
            down_bytes_per_s=rng.choice((5e4, 1e6)),
        )
        profiles.append(profile)
        candidates.append(
            Candidate(
                node_id=profile.node_id,
                incarnation=i,
                span=spans[i] if i < len(spans) else rng.choice(extra),
                cost=stage_cost(profile, SPEC),
                kv_tokens_free=rng.choice((50, 100, 200)),
                kv_tokens_max=200,
                num_requests=rng.randrange(4),
                queue_tokens=rng.choice((0, 0, 64)),
            )
        )
    links = Links(profiles)
    if has_places:
        region_of = {p.node_id: rng.randrange(3) for p in profiles}
        mile_ms = {p.node_id: rng.choice((0.0, 1.0, 9.0)) for p in profiles}
        links = Places(profiles, region_of, mile_ms, REGIONS_MS)
    elif has_pairs:
        for a, b in itertools.permutations(profiles, 2):
            if rng.random() < 0.3:
                links.set_rtt(a.node_id, b.node_id, rng.choice((1.0, 20.0, 80.0)))
    query = Query(
        spec=SPEC,
        prompt_tokens=rng.randrange(1, 60),
        new_tokens=rng.randrange(1, 40),
        kv_tokens=rng.choice((40, 100, 150)),
        hop_bytes=HOP_BYTES,
    )
    return candidates, links, query


def naive(
    candidates: list[Candidate], links: Links, query: Query, excluded: frozenset[NodeId]
) -> float | None:
    """The least cost over every order of whole nodes that covers all layers."""
    able = [
        c for c in candidates if c.kv_tokens_free >= query.kv_tokens and c.node_id not in excluded
    ]
    best: float | None = None
    for size in range(1, min(len(able), LAYERS) + 1):
        for chain in itertools.permutations(able, size):
            at = 0
            for stage in chain:
                if stage.span.start != at:
                    break
                at = stage.span.end
            else:
                if at == LAYERS:
                    total = whole_cost(list(chain), links, query)
                    best = total if best is None else min(best, total)
    return best


def whole_cost(chain: list[Candidate], links: Links, query: Query) -> float:
    """Of nodes that run all they hold."""
    return cost(chain, [(stage.span.start, stage.span.end) for stage in chain], links, query)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["places", "pairs", "neither"]), st.booleans())
def test_the_board_finds_what_the_twin_finds(seed: int, ground: str, has_news: bool) -> None:
    candidates, links, query = crowd(
        seed, has_places=ground == "places", has_pairs=ground == "pairs"
    )
    board = Board(candidates, links, num_layers=LAYERS, hop_bytes=HOP_BYTES)
    excluded = frozenset({NodeId("n1")}) if seed % 3 == 0 else frozenset[NodeId]()
    if has_news:
        other, _, _ = crowd(seed + 1, has_places=False, has_pairs=False)
        board.best(query)
        for mine, news in zip(list(candidates), other, strict=False):
            fresh = Candidate(
                node_id=mine.node_id,
                incarnation=mine.incarnation,
                span=mine.span,
                cost=news.cost,
                kv_tokens_free=news.kv_tokens_free,
                kv_tokens_max=200,
                num_requests=news.num_requests,
            )
            candidates[candidates.index(mine)] = fresh
            assert board.update(fresh) is not None
    found = board.best(query, excluded)
    best = naive(candidates, links, query, excluded)
    assert (found is None) == (best is None)
    if found is None or best is None:
        return
    assert abs(found.total_ms - best) < 1e-6 * best
    route = board.route(found.path)
    assert not route_violations({c.node_id: c for c in candidates}, query, route)
    chosen = [next(c for c in candidates if c.node_id == s.node_id) for s in route]
    assert abs(whole_cost(chosen, links, query) - best) < 1e-6 * best
    if board.is_aligned and not excluded:
        general = select_route(candidates, query, links)
        assert general is not None and abs(general.total_ms - best) < 1e-6 * best


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9))
def test_the_checker_sees_what_is_broken(seed: int) -> None:
    candidates, links, query = crowd(seed, has_places=True, has_pairs=False)
    found = Board(candidates, links, num_layers=LAYERS, hop_bytes=HOP_BYTES).best(query)
    if found is None:
        return
    board = Board(candidates, links, num_layers=LAYERS, hop_bytes=HOP_BYTES)
    route = board.route(found.path)
    known = {c.node_id: c for c in candidates}
    assert route_violations(known, query, route[:-1])
    assert route_violations(known, query, (*route, route[-1]))
    assert route_violations({}, query, route)
