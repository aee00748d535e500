"""Disjoint chains over what nodes hold, against a twin that works out every way anew."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from plait.types import DType, LayerSpan, NodeId
from scheduler.allocation import AllocationProblem
from scheduler.allocation.chain import ChainPlanner, Stages
from scheduler.allocation.stitch import stitch
from tests.unit.scheduler.pools import node, tiny_model


def draw_pool(seed: int) -> tuple[ChainPlanner, dict[NodeId, LayerSpan]]:
    """Nodes of few kinds or of many; nothing, a part or all of their links measured."""
    rng = Random(seed)
    num_layers = rng.choice((2, 6, 12))
    are_alike = rng.random() < 0.5
    nodes = tuple(
        node(
            f"n{i:02d}",
            layer_ms=rng.choice((1.0, 2.0)) if are_alike else rng.uniform(0.1, 5.0),
            rtt_ms=rng.choice((1.0, 30.0)) if are_alike else rng.uniform(1.0, 60.0),
            up_bytes_per_s=rng.choice((1e4, 1e5, 1e6)),
            down_bytes_per_s=rng.choice((5e4, 1e6)),
        )
        for i in range(rng.randrange(1, 16))
    )
    ids = [profile.node_id for profile in nodes]
    measured = rng.choice((0.0, 0.2, 1.0))
    pairs = [(a, b) for a in ids for b in ids if a != b and rng.random() < measured]
    problem = AllocationProblem(
        models=(tiny_model(num_layers),),
        nodes=nodes,
        kv_tokens_min=64,
        wire_dtype=DType.BFLOAT16,
        rtt_ms=tuple((pair, rng.choice((1.0, 20.0, 80.0))) for pair in pairs),
        bytes_per_s=tuple((pair, rng.choice((1e4, 1e7))) for pair in pairs[::3]),
    )
    held = {}
    for node_id in ids:
        start = rng.choice((0, 0, num_layers // 2, rng.randrange(num_layers)))
        held[node_id] = LayerSpan(
            start, rng.choice((num_layers, rng.randrange(start + 1, num_layers + 1)))
        )
    return ChainPlanner(problem, problem.models[0]), held


def length_ms(planner: ChainPlanner, stages: Stages) -> float:
    """A token's way along a chain."""
    total, before = 0.0, None
    for node_id, span in stages:
        if before is not None:
            total += planner.links.hop_ms(before, node_id, planner.hop_bytes)
        total += planner.costs[node_id].decode_ms(len(span), 1)
        before = node_id
    return total


def shortest_ms(planner: ChainPlanner, held: dict[NodeId, LayerSpan]) -> float | None:
    """Over all layers and all nodes, boundary by boundary."""
    reached: dict[NodeId, float] = {}
    for node_id in sorted(held, key=lambda n: (held[n].end, held[n].start, n)):
        span, cost = held[node_id], planner.costs[node_id]
        ways = [cost.decode_ms(len(span), 1)] if span.start == 0 else []
        for before, so_far in reached.items():
            cut = held[before].end
            if span.start <= cut < span.end:
                hop_ms = planner.links.hop_ms(before, node_id, planner.hop_bytes)
                ways.append(so_far + hop_ms + cost.decode_ms(span.end - cut, 1))
        if ways:
            reached[node_id] = min(ways)
    whole = [ms for n, ms in reached.items() if held[n].end == planner.spec.num_layers]
    return min(whole, default=None)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_each_chain_is_the_shortest_of_the_nodes_that_are_left(seed: int) -> None:
    planner, held = draw_pool(seed)
    left = dict(held)
    chains = stitch(planner, held)
    for stages, rate in chains:
        best = shortest_ms(planner, left)
        assert best is not None
        assert abs(length_ms(planner, stages) - best) < 1e-9 * best
        assert [s.start for _, s in stages] == [0, *(s.end for _, s in stages[:-1])]
        assert all(held[n].start <= s.start and held[n].end == s.end for n, s in stages)
        assert rate == planner.evaluate(stages, held=held)
        for node_id, _ in stages:
            del left[node_id]
    assert shortest_ms(planner, left) is None
    shuffled = list(held.items())
    Random(seed).shuffle(shuffled)
    assert stitch(planner, dict(shuffled)) == chains
