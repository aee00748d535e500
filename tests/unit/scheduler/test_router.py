"""Ready chains: priced live, taken in turns as planned, gone round, searched behind."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from plait.prefixes import BLOCK_TOKENS
from plait.types import LayerSpan, NodeId, Stage
from scheduler.cost import Links, stage_cost
from scheduler.selection import Candidate, Query
from scheduler.selection.affinity import PrefixIndex, two_choices
from scheduler.selection.board import Board
from scheduler.selection.decision import How, priced, why
from scheduler.selection.evidence import parts
from scheduler.selection.groups import INFINITE
from scheduler.selection.router import Router
from scheduler.selection.verify import route_violations
from tests.unit.scheduler.pools import node, tiny_model

SPEC = tiny_model()
HOP_BYTES = 1_152
Spans = dict[str, tuple[int, int]]
PAIRS: Spans = {"a1": (0, 15), "a2": (15, 30), "b1": (0, 15), "b2": (15, 30)}


def candidate(name: str, span: tuple[int, int], *, layer_ms: float = 1.0) -> Candidate:
    return Candidate(
        node_id=NodeId(name),
        incarnation=1,
        span=LayerSpan(*span),
        cost=stage_cost(node(name, layer_ms=layer_ms), SPEC),
        kv_tokens_free=1_000,
        kv_tokens_max=1_000,
    )


def router(spans: Spans, *, weights: dict[tuple[str, ...], float] | None = None) -> Router:
    nodes = [candidate(name, span) for name, span in spans.items()]
    links = Links([node(name, rtt_ms=5.0) for name in spans])
    planned = [([NodeId(n) for n in chain], w) for chain, w in (weights or {}).items()]
    return Router(nodes, links, spec=SPEC, hop_bytes=HOP_BYTES, planned=planned)


def query(*, prompt: int = 50, new: int = 50) -> Query:
    return Query(
        spec=SPEC,
        prompt_tokens=prompt,
        new_tokens=new,
        kv_tokens=prompt + new,
        hop_bytes=HOP_BYTES,
    )


def names(which: Router, *, excluded: tuple[str, ...] = ()) -> str:
    decision = which.route(query(), [NodeId(n) for n in excluded])
    assert decision is not None
    return "-".join(stage.node_id for stage in decision.route)


def test_equal_chains_share_the_load_as_the_plan_weighs_them_without_bursts() -> None:
    which = router(PAIRS, weights={("a1", "a2"): 3.0, ("b1", "b2"): 1.0})
    turns = [names(which) for _ in range(400)]
    of_planned = Counter(t for t in turns if t in ("a1-a2", "b1-b2"))
    assert 2.9 < of_planned["a1-a2"] / of_planned["b1-b2"] < 3.1
    longest = max(len(run) for run in "".join("a" if t == "a1-a2" else " " for t in turns).split())
    assert longest <= 3


def test_a_loaded_chain_is_passed_over_whatever_the_plan_says() -> None:
    which = router(PAIRS, weights={("a1", "a2"): 3.0, ("b1", "b2"): 1.0})
    assert which.update(replace(candidate("a2", (15, 30)), num_requests=8))
    assert all(names(which).endswith("b2") for _ in range(20))


def test_whoever_reads_the_board_first_its_listeners_hear_of_every_row() -> None:
    nodes = [candidate(name, span) for name, span in PAIRS.items()]
    looks: list[Callable[[Board], object]] = [
        lambda board: board.candidates,
        lambda board: board.best(query()),
        lambda board: board.take_in(),
    ]
    for look in looks:
        board = Board(
            nodes, Links([node(name) for name in PAIRS]), num_layers=30, hop_bytes=HOP_BYTES
        )
        heard: set[int] = set()
        board.listeners.append(heard.update)
        board.update(replace(candidate("a2", (15, 30)), num_requests=8))
        look(board)
        assert heard == {board.index(NodeId("a2"))}


def test_news_of_loads_reach_ready_chains_whoever_looks_at_the_nodes_first() -> None:
    looks: list[Callable[[Router], object]] = [
        lambda which: which.candidates,
        lambda which: which.grow(),
        lambda which: which.exact(query()),
        lambda which: which.refusals(query()),
    ]
    for look in looks:
        for spans in (PAIRS, PAIRS | {"c": (10, 20)}):
            which = router(spans, weights={("a1", "a2"): 3.0, ("b1", "b2"): 1.0})
            assert which.update(replace(candidate("a2", (15, 30)), num_requests=8))
            look(which)
            assert all("a2" not in names(which) for _ in range(20))


def test_a_chain_reserves_all_or_nothing() -> None:
    which = router(PAIRS)
    for name in ("a2", "b2"):
        assert which.update(replace(candidate(name, (15, 30)), kv_tokens_free=99))
    assert which.route(query()) is None
    assert which.route(query(new=10)) is not None


def test_suspects_are_gone_round_by_a_chain_that_is_ready() -> None:
    which = router({**PAIRS, "c2": (15, 30)})
    assert "a1" not in names(which, excluded=("a1",))
    decision = which.route(query(), [NodeId("a2"), NodeId("b2")])
    assert decision is not None and decision.how is How.CHAIN
    assert decision.route[1].node_id == "c2"


def test_what_no_ready_chain_can_take_is_searched_for() -> None:
    # Forty pairs: chains share no node, so most combinations are not ready.
    spans = {
        f"{side}{i:02d}": edge
        for i in range(40)
        for side, edge in zip("ab", ((0, 15), (15, 30)), strict=True)
    }
    which = router(spans)
    for name, span in spans.items():
        if name not in ("a39", "b17"):
            assert which.update(replace(candidate(name, span), kv_tokens_free=0))
    decision = which.route(query())
    assert decision is not None and decision.how is How.SEARCH
    assert [s.node_id for s in decision.route] == ["a39", "b17"]
    assert not route_violations({c.node_id: c for c in which.candidates}, query(), decision.route)
    assert "searched all nodes" in why(decision)


def test_overlapping_spans_are_stitched_and_kept_ready() -> None:
    which = router({"a": (0, 18), "b": (12, 30)})
    decision = which.route(query())
    assert decision is not None and decision.how is How.CHAIN
    assert not route_violations({c.node_id: c for c in which.candidates}, query(), decision.route)
    exact = which.exact(query())
    assert exact is not None and abs(exact[1] - decision.total_ms) < 1e-6 * exact[1]


def test_a_blocked_hop_is_gone_round() -> None:
    which = router(PAIRS)

    def is_blocked(one: NodeId, two: NodeId) -> bool:
        return {one, two} in ({"a1", "a2"}, {"b1", "a2"})

    decision = which.route(query(), is_blocked=is_blocked)
    assert decision is not None and decision.route[1].node_id == "b2"


def test_a_node_with_other_layers_asks_for_a_new_router() -> None:
    which = router(PAIRS)
    assert not which.update(candidate("a1", (0, 14)))
    assert not which.update(candidate("new", (0, 15)))
    assert not which.update(replace(candidate("a1", (0, 15)), incarnation=2))


def test_a_decision_can_be_explained() -> None:
    which = router(PAIRS)
    assert which.update(replace(candidate("b2", (15, 30)), num_requests=4))
    decision = which.route(query(), [NodeId("b1")])
    assert decision is not None
    assert decision.total_ms > decision.ttft_ms > decision.token_ms > 0.0
    assert "1 nodes avoided" in why(decision)
    shown = priced(decision)
    assert shown[0].note == "chosen" and shown[0].nodes == ("a1", "a2")
    assert any("dearer" in p.note for p in shown) and shown[-1].total_ms is None


def test_affinity_wins_until_its_chain_is_too_busy() -> None:
    index = PrefixIndex()
    which = router(PAIRS)
    blocks = [11, 22, 33]
    chain = next(c.route for c in which.chains.all if c.node_ids == ("b1", "b2"))
    index.remember(blocks, chain)
    held = index.held_tokens([11, 22, 99])
    assert held == {chain: 2 * BLOCK_TOKENS}
    for _ in range(4):
        decision = which.route(query(), held_tokens=held)
        assert decision is not None and decision.route[0].node_id == "b1"
    assert which.update(replace(candidate("b2", (15, 30)), num_requests=12))
    decision = which.route(query(), held_tokens=held)
    assert decision is not None and decision.route[0].node_id == "a1"
    index.forget(NodeId("b2"))
    assert index.held_tokens(blocks) == {}


def test_the_prefix_index_is_bounded() -> None:
    index = PrefixIndex(entries_max=3)
    for block in range(10):
        index.remember([block], (Stage(NodeId("a"), 1, LayerSpan(0, 30)),))
    assert index.held_tokens([0]) == {} and index.held_tokens([9]) != {}


def test_two_choices_weighs_saving_against_load() -> None:
    assert two_choices([100.0, 110.0], {1: 30.0}, 0) == (1, True)
    assert two_choices([100.0, 110.0], {1: 5.0}, 0) == (0, False)
    assert two_choices([100.0, 140.0], {1: 90.0}, 0) == (0, False)


def test_a_price_is_told_in_parts_that_add_up_and_obstacles_by_name() -> None:
    which = router({**PAIRS, "c2": (15, 30)})
    assert which.update(replace(candidate("c2", (15, 30)), kv_tokens_free=99))
    assert which.update(replace(candidate("a2", (15, 30)), queue_tokens=64))
    decision = which.route(query(), [NodeId("b1")])
    assert decision is not None and decision.evidence is not None
    for c, total in enumerate(decision.totals):
        told = parts(decision.evidence, c)
        if total < INFINITE:
            whole = told.wait_ms + told.prefill_ms + told.decode_ms + told.hops_ms
            assert abs(whole - total) < 1e-6 * total
            assert min(told.prefill_ms, told.decode_ms, told.hops_ms) > 0.0
        names_in = decision.chains[c].node_ids
        assert (told.wait_ms > 0.0) == ("a2" in names_in)
        if "c2" in names_in and "b1" not in names_in:
            assert decision.evidence.obstacles[c] == ("c2", "no room: 99 of 100 tokens free")
        if "b1" in names_in:
            assert decision.evidence.obstacles[c] == ("b1", "avoided")


def test_what_no_chain_can_take_is_refused_chain_by_chain() -> None:
    which = router(PAIRS)
    for name in ("a2", "b2"):
        assert which.update(replace(candidate(name, (15, 30)), kv_tokens_free=7))
    refused = which.refusals(query(), [NodeId("a1")])
    assert {obstacle.why for _, obstacle in refused} == {
        "avoided",
        "no room: 7 of 100 tokens free",
    }
    assert len(refused) == len(which.chains.all)
