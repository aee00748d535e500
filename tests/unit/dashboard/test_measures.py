"""What is reckoned from snapshots: traffic, histories, bottlenecks, and where boxes stand."""

import dataclasses
import itertools

import pytest

from coordinator.core.view import NodeView, RequestView
from coordinator.dashboard.cached import Cached
from coordinator.dashboard.flows import GATEWAY, FlowMeter
from coordinator.dashboard.history import NODES_MAX, STEP_MS, STEPS_MAX, NodeHistory
from coordinator.dashboard.layers import ROWS_SHOWN, bottleneck, packed
from coordinator.dashboard.map_layout import BOX_WIDTH, BOXES_MAX, lay_out
from coordinator.dashboard.shelf import RequestShelf
from coordinator.dashboard.snapshot import SharedSnapshot
from plait.clock import ManualClock
from tests.unit.dashboard.fake_sources import FakeRoutes
from tests.unit.dashboard.fakes import FakeViews, network_view, node_view, request_view

ONE, TWO, THREE = (f"nabcdefgh{number:08d}" for number in range(3))


def grown(tokens: int) -> RequestView:
    return request_view(1, num_generated=tokens)


def test_traffic_is_what_requests_grew_by_and_fades() -> None:
    meter = FlowMeter()
    assert meter.note([grown(5_000)], 0) == ()  # what was there before is nobody's rate
    flows = meter.note([grown(5_150)], 1_000)
    assert [(flow.source_id, flow.target_id) for flow in flows] == [
        (GATEWAY, ONE),
        (ONE, TWO),
        (TWO, THREE),
        (THREE, GATEWAY),
    ]
    assert {round(flow.tokens_per_s, 1) for flow in flows} == {10.0}
    later = meter.note([grown(5_150)], 16_000)
    assert later[0].tokens_per_s == pytest.approx(10.0 / 2.718, rel=0.01)
    assert meter.note([], 200_000) == ()


def test_a_steady_rate_is_seen_as_such_however_often_one_looks() -> None:
    for step_ms in (500, 2_000):
        meter = FlowMeter()
        for now_ms in range(0, 120_000, step_ms):
            flows = meter.note([grown(100 + now_ms * 20 // 1_000)], now_ms)
        assert flows[0].tokens_per_s == pytest.approx(20.0, rel=0.1)


def working(node: NodeView, tokens: int, incarnation: int = 1) -> NodeView:
    return dataclasses.replace(node, tokens_total=tokens, incarnation=incarnation)


def test_a_nodes_history_has_rates_begins_anew_with_it_and_ends() -> None:
    history, node = NodeHistory(), node_view(0, (0, 10))
    for at in range(STEPS_MAX + 20):
        assert history.note([working(node, 50 * at)], at * STEP_MS)
        assert not history.note([working(node, 50 * at)], at * STEP_MS + 1)
    series = history.of(node.node_id)
    assert len(series.tokens_per_s) == STEPS_MAX
    assert set(series.tokens_per_s) == {5.0}
    history.note([working(node, 3, incarnation=2)], 10**7)
    assert series.tokens_per_s[-1] == 5.0  # a restarted counter is no rate
    others = [dataclasses.replace(node, node_id=f"n{i}") for i in range(NODES_MAX)]
    history.note(others, 2 * 10**7)
    assert len(history.of(node.node_id).tokens_per_s) == 0


def test_requests_that_ended_are_kept_whole_and_found_by_node() -> None:
    shelf = RequestShelf(kept_max=2)
    ended = [dataclasses.replace(request_view(n), request_id=f"r{n}", total_ms=5) for n in range(3)]
    shelf.note([*ended, request_view(9)])
    assert shelf.find("r0") is None
    assert shelf.find("req-0009") is None
    assert [r.request_id for r in shelf.of_node(TWO, 5)] == ["r2", "r1"]
    assert shelf.of_node("nobody", 5) == []


async def test_what_ended_before_the_process_began_is_on_the_shelf_with_the_names_of_then() -> None:
    snapshot = SharedSnapshot(views=FakeViews(), telemetry=None, clock=ManualClock())
    snapshot.recall(await FakeRoutes().recent(5))
    assert [r.request_id for r in snapshot.shelf.of_node("nlongago", 5)] == ["req-before"]
    shown = snapshot.current()
    assert shown.name("nlongago") == "old-tower" and shown.name(TWO) == "lab-4090"


def test_the_bottleneck_is_where_the_holders_are_slowest_together() -> None:
    view = network_view()
    slow = bottleneck(view, view.models[0])
    assert slow is not None
    assert (slow.start, slow.end) == (20, 30)
    assert [node.display_name for node in slow.holders] == ["dorm-m2"]
    assert slow.tokens_per_s == pytest.approx(1_000 / 7.1)
    twin = dataclasses.replace(view.nodes[2], node_id="twin")
    helped = bottleneck(dataclasses.replace(view, nodes=(*view.nodes, twin)), view.models[0])
    assert helped is not None
    assert (helped.start, helped.end) == (10, 20)


def test_missing_layers_and_alike_ones_are_no_bottleneck() -> None:
    broken = network_view(is_whole=False)
    assert bottleneck(broken, broken.models[0]) is None
    whole = network_view()
    alone = dataclasses.replace(whole, nodes=(node_view(0, (0, 30)),))
    assert bottleneck(alone, alone.models[0]) is None
    unmeasured = dataclasses.replace(whole.nodes[0], stage_ms=0.0, predicted_stage_ms=0.0)
    silent = dataclasses.replace(whole, nodes=(unmeasured, *whole.nodes[1:]))
    assert bottleneck(silent, silent.models[0]) is None


def test_holders_share_rows_where_they_do_not_overlap() -> None:
    spans = [(0, 10), (0, 10), (5, 20), (10, 20), (20, 30)]
    rows, hidden = packed([node_view(at, span) for at, span in enumerate(spans)])
    assert [[node.span for node in row] for row in rows] == [
        [(0, 10), (10, 20), (20, 30)],
        [(0, 10)],
        [(5, 20)],
    ]
    assert hidden == 0
    rows, hidden = packed([node_view(at, (0, 10)) for at in range(ROWS_SHOWN + 7)])
    assert (len(rows), hidden) == (ROWS_SHOWN, 7)


@pytest.mark.parametrize("count", [3, 40, 400])
def test_maps_of_any_size_have_few_boxes_that_do_not_cover_each_other(count: int) -> None:
    model = network_view().models[0]
    holders = [
        dataclasses.replace(
            node_view(at, (at * 7 % 26, at * 7 % 26 + 4)), node_id=f"n{at:04d}", hops=()
        )
        for at in range(count)
    ]
    holders.sort(key=lambda node: node.span or (0, 0))
    layout = lay_out(model, holders, ())
    inner = layout.boxes[1:-1]
    assert len(inner) <= BOXES_MAX
    assert sum(len(box.nodes) for box in inner) == count
    places = sorted((box.y, box.x) for box in layout.boxes)
    assert len(set(places)) == len(places)
    for (y, x), (other_y, other_x) in itertools.pairwise(places):
        assert y != other_y or other_x - x >= BOX_WIDTH
    assert max(box.x + BOX_WIDTH for box in layout.boxes) <= layout.width


def test_hops_are_lines_between_boxes_with_their_round_trip() -> None:
    view, meter = network_view(), FlowMeter()
    meter.note([grown(10)], 0)
    flows = meter.note([grown(160)], 1_000)
    holders = [node for node in view.nodes if node.span is not None]
    edges = lay_out(view.models[0], holders, flows).edges
    drawn = {(edge.source.key, edge.target.key): edge.rtt_ms for edge in edges}
    assert drawn == {
        ("in", ONE): 12.3,
        (ONE, TWO): 8.4,
        (TWO, THREE): None,
        (THREE, "out"): 14.3,
    }


async def test_the_store_is_asked_once_for_many_viewers() -> None:
    clock, asked = ManualClock(), list[str]()

    async def fetch() -> str:
        asked.append("x")
        return f"answer {len(asked)}"

    cached: Cached[str] = Cached(clock, fresh_ms=2_000)
    assert [await cached.get("k", fetch) for _ in range(5)] == ["answer 1"] * 5
    assert await cached.get("other", fetch) == "answer 2"
    clock.advance(2_000)
    assert await cached.get("k", fetch) == "answer 3"
    cached.forget()
    assert await cached.get("k", fetch) == "answer 4"
