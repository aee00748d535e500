"""What is drawn of a snapshot: the truth, escaped, and only once for all viewers."""

import dataclasses
import re

import pytest

from coordinator.core.view import NetworkView, PlanChangeView
from coordinator.dashboard import access, figures, layers, nodes, overview, requests
from coordinator.dashboard.live import parse_action
from coordinator.dashboard.paging import Wanted
from coordinator.dashboard.snapshot import SharedSnapshot, Snapshot
from coordinator.ports import ApiKey, EnrolmentToken, KeyLimits, NodeTelemetry, TelemetryHealth
from plait.clock import ManualClock
from plait.types import NodeId
from plait.wire.telemetry import PresenceState
from tests.unit.dashboard.fakes import FakeViews, network_view

ALL = Wanted("x", 1, ())
EVIL = '<img src=x onerror="alert(1)">'


def snapshot(view: NetworkView, **changes: object) -> Snapshot:
    made = Snapshot(
        view=view,
        names={node.node_id: node.display_name for node in view.nodes},
        telemetry={},
        health=None,
        tokens_per_s=0.0,
        history=(),
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def everything(shown: Snapshot) -> str:
    return "".join(
        draw(shown)
        for draw in (
            overview.draw_headline,
            overview.draw_tiles,
            layers.draw_layers,
            nodes.draw_nodes,
            requests.draw_requests,
            overview.draw_plan,
        )
    )


def test_a_whole_network_is_shown() -> None:
    drawn = everything(snapshot(network_view()))
    for fact in ("Serving smollm2", "attic-3060", "3 / 4", "HiGHS, optimal", "184 ms", "23.4"):
        assert fact in drawn
    assert "fetching 90.0 MiB of 270 MiB" in drawn
    assert "cell-missing" not in drawn


def test_missing_layers_are_named_and_marked() -> None:
    drawn = everything(snapshot(network_view(is_whole=False)))
    assert "Layers 10-19 of 30 have no node, 142 MiB are missing. One more node" in drawn
    assert drawn.count("cell-missing") == 10
    assert "10 layers have no replica" in drawn


def test_requests_that_ended_are_listed_by_when_they_did_not_by_how_long_they_took() -> None:
    view = network_view()
    slow, quick = (
        dataclasses.replace(view.requests[2], request_id=name, age_ms=age_ms, total_ms=age_ms)
        for name, age_ms in (("slow-but-last", 90_000), ("quick", 400))
    )
    view = dataclasses.replace(view, requests=(*view.requests[:2], slow, quick))
    drawn = requests.draw_requests(snapshot(view))
    places = [drawn.index(name) for name in ("req-0001", "req-0002", "slow-but-last", "quick")]
    assert places == sorted(places)


def test_an_empty_network_says_what_to_do() -> None:
    view = dataclasses.replace(network_view(), nodes=(), requests=(), plan=None)
    drawn = everything(snapshot(view))
    assert "Create an enrolment token" in drawn
    assert "No plan yet" in drawn


def test_every_foreign_text_is_escaped() -> None:
    view = network_view()
    evil_node = dataclasses.replace(
        view.nodes[0], display_name=EVIL, device_name=EVIL, last_error=EVIL, span_reason=EVIL
    )
    evil_request = dataclasses.replace(view.requests[0], request_id=EVIL, reason=EVIL)
    evil_model = dataclasses.replace(view.models[0], model_id=EVIL, architecture=EVIL, advice=EVIL)
    assert view.plan is not None
    evil = dataclasses.replace(
        view,
        nodes=(evil_node, dataclasses.replace(evil_node, state="loading", last_error="")),
        requests=(evil_request,),
        models=(evil_model, dataclasses.replace(evil_model, is_ready=False)),
        plan=dataclasses.replace(view.plan, warnings=(EVIL,), solver=EVIL),
    )
    health = TelemetryHealth(is_connected=True, messages_total=1, dropped=((EVIL, 1),))
    drawn = everything(snapshot(evil, health=health))
    token = EnrolmentToken(
        token_id=EVIL, display_name=EVIL, state=EVIL, expires_unix_ms=0, node_id=EVIL
    )
    key = ApiKey(key_id=EVIL, display_name=EVIL, is_admin=True, is_revoked=False, created_unix_ms=0)
    drawn += access.draw_tokens([token], ALL, {}) + access.draw_keys([key], ALL)
    drawn += access.draw_weigh_form([key]) + access.draw_limit_form(
        [dataclasses.replace(key, is_admin=False, limits=KeyLimits(models=(EVIL,)))]
    )
    drawn += access.draw_secret(EVIL, EVIL, EVIL)
    assert "<img" not in drawn
    assert not re.search(r'"[^"<>]*onerror="', drawn)


def test_presence_is_shown_where_a_node_was_lost() -> None:
    heard = NodeTelemetry(
        node_id=NodeId("nabcdefgh00000000"),
        presence=PresenceState.LOST,
        presence_age_ms=10,
        telemetry=None,
        telemetry_age_ms=None,
    )
    shown = snapshot(network_view(), telemetry={"nabcdefgh00000000": heard})
    assert '<span class="chip chip-bad">lost</span>' in nodes.draw_nodes(shown)


def test_a_node_that_vanished_is_remembered_by_name_for_a_while() -> None:
    heard = NodeTelemetry(
        node_id=NodeId("nz"),
        presence=PresenceState.LOST,
        presence_age_ms=2_000,
        telemetry=None,
        telemetry_age_ms=None,
    )
    health = TelemetryHealth(is_connected=True, messages_total=1, dropped=())
    shown = snapshot(network_view(), telemetry={"nz": heard}, health=health, names={"nz": EVIL})
    drawn = overview.draw_plan(shown)
    assert "lost" in drawn
    assert "2 s ago" in drawn
    assert "<img" not in drawn
    late = dataclasses.replace(heard, presence_age_ms=600_000)
    assert "lost" not in overview.draw_plan(dataclasses.replace(shown, telemetry={"nz": late}))


def test_one_snapshot_serves_all_viewers() -> None:
    views, clock = FakeViews(), ManualClock()
    shared = SharedSnapshot(views=views, telemetry=None, clock=clock)
    drawn = {shared.drawn("tiles", overview.draw_tiles) for _ in range(50)}
    assert views.num_looks == 1
    assert len(drawn) == 1
    clock.advance(1_000)
    drawn.add(shared.drawn("tiles", overview.draw_tiles))
    assert views.num_looks == 2
    assert len(drawn) == 2


def test_the_rate_is_that_of_the_last_seconds() -> None:
    views, clock = FakeViews(), ManualClock()
    shared = SharedSnapshot(views=views, telemetry=None, clock=clock)
    for _ in range(20):
        rate = shared.current().tokens_per_s
        clock.advance(1_000)
    assert rate == pytest.approx(10.0)
    assert shared.current().history == (10.0,) * 20


def test_a_restarted_counter_gives_no_negative_rate() -> None:
    views, clock = FakeViews(), ManualClock()
    shared = SharedSnapshot(views=views, telemetry=None, clock=clock)
    shared.current()
    views.num_looks = -50
    clock.advance(1_000)
    assert shared.current().tokens_per_s == 0.0


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        (figures.num_bytes(0), "0 B"),
        (figures.num_bytes(1_536), "1.5 KiB"),
        (figures.num_bytes(5 << 40), "5.0 TiB"),
        (figures.num_bytes(1 << 70), "1048576 PiB"),
        (figures.count(1_234_567), "1\u202f234\u202f567"),
        (figures.milliseconds(0.4), "0.40 ms"),
        (figures.milliseconds(184), "184 ms"),
        (figures.milliseconds(12_345), "12.3 s"),
        (figures.milliseconds(None), figures.DASH),
        (figures.age(90_000), "1 min"),
        (figures.age(None), figures.DASH),
        (figures.layers((0, 10)), "0\u20139"),
        (figures.layers((3, 4)), "3"),
        (figures.rate(0), figures.DASH),
        (figures.per_second(9.96), "10.0"),
        (figures.per_second(45_872.4), "45\u202f872"),
    ],
)
def test_figures_read_well(drawn: str, expected: str) -> None:
    assert drawn == expected


@pytest.mark.parametrize(
    "raw",
    [None, "drain", [], {}, {"action": 5}, {"action": "drain", "value": 5, "fields": {}}],
)
def test_nonsense_from_a_browser_is_no_action(raw: object) -> None:
    assert parse_action(raw) is None


def test_an_action_is_cut_to_size() -> None:
    action = parse_action(
        {"action": "x" * 900, "value": "v" * 9_000, "fields": {"name": "n" * 9_000, "bad": 5}}
    )
    assert action is not None
    assert len(action.name) == 64
    assert len(action.value) == 512
    assert list(action.fields) == ["name"]


def test_the_last_plans_that_moved_something_are_listed_and_escaped() -> None:
    change = PlanChangeView(
        age_ms=61_000,
        epoch=6,
        cause=EVIL,
        tokens_per_s=1.0,
        moved_nodes=2,
        moved_bytes=3 << 30,
        fetched_bytes=1 << 20,
    )
    shown = snapshot(dataclasses.replace(network_view(), changes=(change,)))
    drawn = overview.draw_plan(shown)
    assert EVIL not in drawn
    assert "plan #6: 2 nodes moved, 3.0 GiB to load, 1.0 MiB of them to fetch" in drawn
    assert "1 min ago" in drawn
