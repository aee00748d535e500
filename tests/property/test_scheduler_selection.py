"""The router against a twin that tries every chain."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from plait.types import LayerSpan, NodeId, missing_spans
from scheduler.cost import Links, stage_cost
from scheduler.selection import Candidate, Query, select_route
from tests.kit.routes import cost
from tests.unit.scheduler.pools import node, tiny_model

LAYERS = 5
SPEC = tiny_model(LAYERS)


@st.composite
def nets(draw: st.DrawFn) -> tuple[list[Candidate], Links, Query]:
    candidates, profiles = [], []
    for index in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, LAYERS - 1))
        end = draw(st.integers(start + 1, LAYERS))
        profile = node(
            f"n{index}",
            layer_ms=draw(st.sampled_from([0.5, 1.0, 4.0])),
            rtt_ms=draw(st.sampled_from([1.0, 30.0])),
        )
        profiles.append(profile)
        candidates.append(
            Candidate(
                node_id=profile.node_id,
                incarnation=1,
                span=LayerSpan(start, end),
                cost=stage_cost(profile, SPEC),
                kv_tokens_free=draw(st.sampled_from([50, 100, 200])),
                kv_tokens_max=200,
                num_requests=draw(st.integers(0, 3)),
            )
        )
    query = Query(
        spec=SPEC,
        prompt_tokens=draw(st.integers(1, 60)),
        new_tokens=draw(st.integers(1, 40)),
        kv_tokens=100,
        hop_bytes=1_152,
    )
    rtt = [
        ((NodeId(a.node_id), NodeId(b.node_id)), draw(st.sampled_from([1.0, 80.0])))
        for a, b in itertools.combinations(candidates, 2)
        if draw(st.booleans())
    ]
    return candidates, Links(profiles, rtt), query


def naive(candidates: list[Candidate], links: Links, query: Query) -> float | None:
    """The least cost over every order of nodes and every way to cut the layers where a span starts
    or ends (elsewhere a stage would be cut thin only to be near somebody)."""
    best: float | None = None
    able = [c for c in candidates if c.kv_tokens_free >= query.kv_tokens]
    edges_of_spans = {c.span.start for c in able} | {c.span.end for c in able}
    places = sorted(edges_of_spans - {0, LAYERS})
    for size in range(1, min(len(able), LAYERS) + 1):
        for chain in itertools.permutations(able, size):
            for cuts in itertools.combinations(places, size - 1):
                edges = list(itertools.pairwise((0, *cuts, LAYERS)))
                if all(
                    c.span.start <= a and b <= c.span.end
                    for c, (a, b) in zip(chain, edges, strict=True)
                ):
                    total = cost(list(chain), edges, links, query)
                    best = total if best is None else min(best, total)
    return best


@settings(max_examples=200, deadline=None)
@given(nets())
def test_the_router_finds_what_the_twin_finds(net: tuple[list[Candidate], Links, Query]) -> None:
    candidates, links, query = net
    best = naive(candidates, links, query)
    choice = select_route(candidates, query, links)
    if choice is None:
        assert best is None
        return
    assert best is not None
    at = 0
    for stage in choice.route:
        holder = next(c for c in candidates if c.node_id == stage.node_id)
        assert stage.span.start == at and holder.span.contains(stage.span)
        at = stage.span.end
    assert at == LAYERS
    assert len({stage.node_id for stage in choice.route}) == len(choice.route)
    assert abs(choice.total_ms - best) < 1e-6 * best


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[Candidate], Links, Query]:
    """More candidates than the exact search takes, all with boundaries of their own."""
    layers = 24
    spec = tiny_model(layers)
    candidates, profiles = [], []
    for index in range(draw(st.integers(14, 30))):
        start = draw(st.sampled_from([0, 0, 0, *range(1, layers)]))
        profile = node(
            f"n{index:02d}",
            layer_ms=draw(st.sampled_from([0.5, 1.0, 4.0])),
            rtt_ms=draw(st.sampled_from([1.0, 30.0])),
        )
        profiles.append(profile)
        candidates.append(
            Candidate(
                node_id=profile.node_id,
                incarnation=1,
                span=LayerSpan(start, draw(st.integers(start + 1, layers))),
                cost=stage_cost(profile, spec),
                kv_tokens_free=draw(st.sampled_from([50, 100, 200])),
                kv_tokens_max=200,
            )
        )
    query = Query(spec=spec, prompt_tokens=20, new_tokens=40, kv_tokens=100, hop_bytes=1_152)
    return candidates, Links(profiles), query


@settings(max_examples=60, deadline=None)
@given(crowds())
def test_in_a_crowd_a_chain_is_found_exactly_when_one_exists(
    net: tuple[list[Candidate], Links, Query],
) -> None:
    candidates, links, query = net
    able = [c.span for c in candidates if c.kv_tokens_free >= query.kv_tokens]
    choice = select_route(candidates, query, links)
    assert (choice is None) == bool(missing_spans(able, query.spec.num_layers))
    if choice is not None:
        edges = [0, *(stage.span.end for stage in choice.route)]
        assert [stage.span.start for stage in choice.route] == edges[:-1] and edges[-1] == 24
        assert len({stage.node_id for stage in choice.route}) == len(choice.route)
