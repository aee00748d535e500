"""Phase 2: the cheapest chain, stitched, and why there is none."""

from plait.types import LayerSpan, ModelSpec, NodeId
from scheduler.cost import Links, stage_cost
from scheduler.selection import Candidate, Query, Verdict, admit, select_route
from tests.unit.scheduler.pools import node, tiny_model

SPEC = tiny_model()


def candidate(
    name: str,
    start: int,
    end: int,
    *,
    layer_ms: float = 1.0,
    kv_free: int = 1_000,
    kv_max: int = 1_000,
    num_requests: int = 0,
    queue_tokens: int = 0,
    stage_ms: float = 0.0,
    spec: ModelSpec = SPEC,
) -> Candidate:
    return Candidate(
        node_id=NodeId(name),
        incarnation=1,
        span=LayerSpan(start, end),
        cost=stage_cost(node(name, layer_ms=layer_ms), spec),
        kv_tokens_free=kv_free,
        kv_tokens_max=kv_max,
        num_requests=num_requests,
        queue_tokens=queue_tokens,
        stage_ms=stage_ms,
    )


def query(*, prompt: int = 50, new: int = 50, spec: ModelSpec = SPEC) -> Query:
    return Query(
        spec=spec, prompt_tokens=prompt, new_tokens=new, kv_tokens=prompt + new, hop_bytes=1_152
    )


def links(*names: str, rtt_ms: dict[tuple[str, str], float] | None = None) -> Links:
    pairs = [((NodeId(a), NodeId(b)), ms) for (a, b), ms in (rtt_ms or {}).items()]
    return Links([node(name, rtt_ms=5.0) for name in names], pairs)


def route_of(candidates: list[Candidate], net: Links) -> list[tuple[str, str]]:
    choice = select_route(candidates, query(), net)
    assert choice is not None
    return [(stage.node_id, str(stage.span)) for stage in choice.route]


def test_the_fastest_holder_of_a_span_is_chosen() -> None:
    pool = [candidate("a", 0, 15), candidate("b", 15, 30), candidate("c", 15, 30, layer_ms=0.5)]
    assert route_of(pool, links("a", "b", "c")) == [("a", "0-14"), ("c", "15-29")]


def test_a_busy_a_waiting_and_a_slowed_node_are_passed_over() -> None:
    for burden in (
        candidate("b", 15, 30, num_requests=8),
        candidate("b", 15, 30, queue_tokens=500),
        candidate("b", 15, 30, num_requests=1, stage_ms=200.0),
    ):
        idle = candidate("c", 15, 30, num_requests=min(1, burden.num_requests))
        pool = [candidate("a", 0, 15), burden, idle]
        assert route_of(pool, links("a", "b", "c"))[1][0] == "c"


def test_spans_with_different_boundaries_are_stitched() -> None:
    pool = [candidate("a", 0, 18), candidate("b", 12, 30, layer_ms=3.0)]
    assert route_of(pool, links("a", "b")) == [("a", "0-17"), ("b", "18-29")]
    pool = [candidate("a", 0, 18, layer_ms=3.0), candidate("b", 12, 30)]
    assert route_of(pool, links("a", "b")) == [("a", "0-11"), ("b", "12-29")]


def test_near_nodes_are_preferred_and_the_way_back_counts() -> None:
    pool = [candidate("a", 0, 15), candidate("b", 15, 30), candidate("c", 15, 30, layer_ms=0.9)]
    # c is quicker, but far from a on the way back only (the pair is measured both ways).
    net = links(
        "a",
        "b",
        "c",
        rtt_ms={("a", "b"): 4.0, ("b", "a"): 4.0, ("a", "c"): 4.0, ("c", "a"): 400.0},
    )
    assert route_of(pool, net)[1][0] == "b"


def test_a_node_stands_in_a_chain_once() -> None:
    # Going out to the quick node and back again would be cheapest, were it allowed.
    pool = [candidate("a", 0, 30, layer_ms=5.0), candidate("b", 10, 20, layer_ms=0.1)]
    chain = route_of(pool, links("a", "b", rtt_ms={("a", "b"): 0.1}))
    assert len({name for name, _ in chain}) == len(chain)
    assert chain == [("a", "0-29")]


def test_nodes_without_room_are_no_candidates() -> None:
    pool = [candidate("a", 0, 30, layer_ms=0.1, kv_free=99), candidate("b", 0, 30)]
    assert route_of(pool, links("a", "b")) == [("b", "0-29")]


def test_a_blocked_hop_is_gone_round() -> None:
    pool = [candidate("a", 0, 15), candidate("b", 15, 30, layer_ms=0.1), candidate("c", 15, 30)]
    net = links("a", "b", "c")

    def is_blocked(one: NodeId, two: NodeId) -> bool:
        return {one, two} == {"a", "b"}

    choice = select_route(pool, query(), net, is_blocked=is_blocked)
    assert choice is not None and choice.route[1].node_id == "c"


def test_nothing_is_found_where_pruning_hides_the_only_way() -> None:
    # Every quick holder of the first half is cut off from the second; only the slowest is not.
    firsts = [candidate(f"f{i:02d}", 0, 15, layer_ms=1.0 + i) for i in range(12)]
    seconds = [candidate("s", 15, 30)]
    names = [c.node_id for c in firsts + seconds]

    def is_blocked(one: NodeId, two: NodeId) -> bool:
        return "f11" not in (one, two)

    choice = select_route(firsts + seconds, query(), links(*names), is_blocked=is_blocked)
    assert choice is not None and choice.route[0].node_id == "f11"


def test_admission_says_why() -> None:
    net = links("a", "b")
    halves = [candidate("a", 0, 15), candidate("b", 15, 30)]
    assert admit(halves, query(), net).verdict is Verdict.NOW

    missing = admit(halves[:1], query(), net)
    assert missing.verdict is Verdict.QUEUE and missing.reason is not None
    assert missing.reason.code == "layers_missing" and "layers 15-29 of" in missing.reason.message

    full = admit([halves[0], candidate("b", 15, 30, kv_free=10)], query(), net)
    assert full.verdict is Verdict.QUEUE and full.reason is not None
    assert full.reason.code == "kv_full"

    large = admit(halves, query(prompt=900, new=101), net)
    assert large.verdict is Verdict.REFUSE and large.reason is not None
    assert large.reason.code == "request_too_large" and "hold 1000" in large.reason.message

    apart = admit(halves, query(), net, is_blocked=lambda one, two: True)
    assert apart.verdict is Verdict.QUEUE and apart.reason is not None
    assert apart.reason.code == "no_path"
