"""What pages draw and what their buttons do: filters, paging, a node that has just gone."""

import dataclasses
import re
from functools import partial

import pytest

from coordinator.core import events as ev
from coordinator.core.view import NetworkView
from coordinator.dashboard import (
    access,
    events,
    models,
    network_map,
    node,
    nodes,
    plan,
    request,
    requests,
)
from coordinator.dashboard.cached import Cached
from coordinator.dashboard.history import NodeSeries
from coordinator.dashboard.live import Action
from coordinator.dashboard.pages.access import parse_limits
from coordinator.dashboard.pages.actions import act_on_network
from coordinator.dashboard.paging import PAGE_SIZE, Choice, filter_form, pager, wanted_of
from coordinator.dashboard.sessions import SessionStore
from coordinator.dashboard.snapshot import SharedSnapshot, Snapshot
from coordinator.dashboard.sources import Sources
from coordinator.dashboard.whatif import Supposed, changes_of, fingerprint, parse_supposed, suppose
from coordinator.ports import KeyLimits, PlanPreview
from plait.clock import ManualClock
from plait.errors import InvalidRequestError
from plait.types import NodeId
from scheduler.allocation import allocate_greedy
from tests.kit.inbox import ListInbox
from tests.kit.stores import MemoryTokens
from tests.unit.dashboard.fake_sources import (
    AWAY,
    SPEC,
    FakeArchive,
    FakePreviewer,
    FakeRegister,
    fake_chronicle,
    past_request,
)
from tests.unit.dashboard.fakes import CLIENT_KEY, admin_and_client, network_view
from tests.unit.dashboard.test_drawing import EVIL, snapshot

ONE = "nabcdefgh00000000"
NAMES = {node.node_id: node.display_name for node in network_view().nodes}


class FixedViews:
    """A network that changes when the test says so."""

    def __init__(self) -> None:
        self.now = network_view()

    def view(self) -> NetworkView:
        return self.now


class Notices:
    """Stands where the page shows what became of an action."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def say(self, message: str, *, tone: str = "ok") -> None:
        self.said.append((tone, message))


def sources_of(views: FixedViews, inbox: ListInbox) -> Sources:
    clock = ManualClock()
    return Sources(
        snapshot=SharedSnapshot(views=views, telemetry=None, clock=clock),
        views=views,
        keys=admin_and_client(),
        tokens=MemoryTokens(),
        register=FakeRegister(),
        archive=FakeArchive(3),
        chronicle=fake_chronicle(clock),
        previewer=FakePreviewer(),
        inbox=inbox,
        sessions=SessionStore(clock=clock),
        clock=clock,
        join_address="x:1",
        specs=(SPEC,),
        known_nodes=Cached(clock),
        past_requests=Cached(clock),
    )


async def pressed(
    name: str, value: str, *, gone: bool = False, state: str = "serving"
) -> tuple[list[tuple[str, str]], list[ev.Event]]:
    """A button on a page that was drawn before the network changed."""
    views, inbox, notices = FixedViews(), ListInbox(), Notices()
    sources = sources_of(views, inbox)
    sources.snapshot.current()
    kept = [dataclasses.replace(n, state=state) if n.node_id == ONE else n for n in views.now.nodes]
    if gone:
        kept = [n for n in kept if n.node_id != ONE]
    views.now = dataclasses.replace(views.now, nodes=tuple(kept))
    action = Action(name=name, value=value, fields={})
    assert await act_on_network(notices, sources, action)
    return notices.said, inbox.events


async def test_a_drain_reaches_the_incarnation_that_was_shown() -> None:
    shown = network_view().nodes[0]
    said, posted = await pressed("drain", nodes.node_value(shown))
    assert said == [("ok", "attic-3060 drains: it finishes what runs and takes nothing new.")]
    (event,) = posted
    assert isinstance(event, ev.NodeDrainAsked)
    assert (event.node_id, event.incarnation) == (ONE, shown.incarnation)


async def test_an_action_on_a_node_that_has_just_gone_says_so_and_does_nothing() -> None:
    value = nodes.node_value(network_view().nodes[0])
    for change in ({"gone": True}, {"state": "gone"}):
        said, posted = await pressed("drain", value, **change)
        assert said == [("warn", "Nothing to drain: attic-3060 has just left the network.")]
        assert posted == []
    said, posted = await pressed("drain", f"{ONE} 7")
    assert said[0][0] == "warn"
    assert "has restarted since" in said[0][1]
    assert posted == []
    said, posted = await pressed("drain", value, state="draining")
    assert said == [("ok", "attic-3060 drains already.")]
    assert posted == []


async def test_a_ban_puts_out_who_is_here_and_keeps_out_who_is_not() -> None:
    said, posted = await pressed("ban", ONE)
    assert "is put out now" in said[0][1]
    assert [type(event) for event in posted] == [ev.NodeDrainAsked]
    said, posted = await pressed("ban", ONE, gone=True)
    assert "was not attached" in said[0][1]
    assert posted == []
    said, _ = await pressed("unban", str(AWAY))
    assert "may come back" in said[0][1]
    with pytest.raises(InvalidRequestError):
        await pressed("ban", "nobody")


def test_addresses_say_what_a_list_is_narrowed_to_and_nonsense_is_all_of_it() -> None:
    wanted = wanted_of("nodes", {"page": "2", "state": "serving", "x": "y"}, ("state", "name"))
    assert (wanted.page, wanted.get("state"), wanted.get("name")) == (2, "serving", "")
    assert list(wanted.cut(range(120))) == list(range(PAGE_SIZE, 2 * PAGE_SIZE))
    drawn = pager(wanted, 120)
    assert "51\u2013100 of 120" in drawn
    assert 'href="/dashboard/nodes?state=serving&amp;page=3"' in drawn
    for raw in ("-1", "0", "x", "9" * 30, "\u00b2"):
        assert wanted_of("nodes", {"page": raw}, ()).page == 1
    assert pager(wanted_of("nodes", {}, ()), PAGE_SIZE) == ""
    evil = wanted_of("nodes", {"name": EVIL}, ("name",))
    assert "<img" not in filter_form(evil, (Choice(name="name", title="Name"),)) + pager(evil, 120)


def test_lists_are_narrowed_and_say_so_where_nothing_fits() -> None:
    shown = snapshot(network_view())
    one = nodes.draw_node_list(shown, wanted_of("nodes", {"name": "DORM"}, ("name",)))
    assert one.count("<tr data-key") == 1
    assert "1 of 4" in one
    none = nodes.draw_node_list(shown, wanted_of("nodes", {"state": "paused"}, ("state",)))
    assert "No node fits" in none
    past = [past_request(number) for number in range(3)]
    drawn = requests.draw_past(past, 120, wanted_of("requests", {}, ()), {"k1": "Ada"})
    assert "Ada" in drawn
    assert "1\u201350 of 120" in drawn
    assert "No request has ended yet" in requests.draw_past((), 0, wanted_of("r", {}, ()), {})


async def test_the_absent_are_listed_banned_ones_first() -> None:
    register = FakeRegister()
    await register.ban(NodeId(ONE))
    wanted = wanted_of("nodes", {}, ())
    known = await register.list_nodes()
    drawn = nodes.draw_absent(known, NAMES, wanted)
    assert drawn.index("attic-3060") < drawn.index("loft-2070")
    assert drawn.count("<tr data-key") == 2
    assert nodes.draw_absent((), NAMES, wanted) == ""


def test_an_event_is_found_by_a_nodes_name_or_id() -> None:
    chronicle = fake_chronicle(ManualClock())
    for asked in ("lab-4090", "LAB", "nabcdefgh00000001"):
        wanted = wanted_of("events", {"node": asked}, ("node", "kind"))
        node_id = events.found_node(wanted, NAMES)
        entries, total = chronicle.page(offset=0, limit=10, node_id=node_id)
        assert total == 2
        drawn = events.draw_events(entries, total, wanted, NAMES)
        assert "connection reset" in drawn


def test_what_is_supposed_is_read_and_wrong_words_are_named() -> None:
    fields = {"without": f"lab-4090, {ONE}", "more": "2", "memory_gib": "8", "busy": "yes"}
    supposed = parse_supposed(fields, NAMES)
    assert supposed.without == ("nabcdefgh00000001", ONE)
    assert (supposed.num_more, supposed.memory_bytes) == (2, 8 << 30)
    assert not supposed.is_as_things_are
    assert parse_supposed({}, NAMES).is_as_things_are
    for wrong in ({"without": "nobody"}, {"more": "x"}, {"more": "1e9"}, {"memory_gib": "nan"}):
        with pytest.raises(InvalidRequestError):
            parse_supposed(wrong, NAMES)


def test_a_preview_says_who_would_move_what() -> None:
    problem = FakePreviewer().question()
    assert problem is not None
    lost = suppose(problem, Supposed(without=(ONE,), num_more=1, memory_bytes=8 << 30))
    assert [n.node_id for n in lost.nodes][-1] == "newcomer 1"
    answer = allocate_greedy(lost)
    changes = changes_of(lost, answer)
    assert "newcomer 1" in [change.node_id for change in changes]
    assert sum(change.read_bytes for change in changes) == answer.moved_bytes
    assert changes_of(problem, dataclasses.replace(answer, placements=problem.held)) == []
    preview = PlanPreview(plan=answer, reason=None)
    shown, supposed = snapshot(network_view()), Supposed(num_more=1)
    drawn = plan.draw_preview(preview, lost, supposed, changes, shown)
    assert "newcomer 1" in drawn
    assert "Supposed only" in drawn
    assert "Apply" not in drawn
    assert "Apply" in plan.draw_preview(preview, lost, Supposed(), changes, shown)


def test_a_preview_is_old_once_somebody_moves() -> None:
    view = network_view()
    moved = dataclasses.replace(view.nodes[0], span=(0, 9))
    busy = dataclasses.replace(view.nodes[0], num_requests=9, tokens_total=10**6)
    assert fingerprint(view) == fingerprint(
        dataclasses.replace(view, nodes=(busy, *view.nodes[1:]))
    )
    assert fingerprint(view) != fingerprint(
        dataclasses.replace(view, nodes=(moved, *view.nodes[1:]))
    )


def test_limits_of_keys_are_read_shown_and_wrong_ones_named() -> None:
    fields = {"requests_per_min": "5", "models": "a, b", "lasts_days": "30", "tokens_per_min": ""}
    limits = parse_limits(fields, 1_000)
    assert limits == KeyLimits(
        requests_per_min=5, models=("a", "b"), expires_unix_ms=1_000 + 30 * 86_400_000
    )
    assert parse_limits({}, 0) == KeyLimits()
    for wrong in ("0", "-1", "1.5", "x", "9" * 40):
        with pytest.raises(InvalidRequestError, match="tokens per min"):
            parse_limits({"tokens_per_min": wrong}, 0)
    key = dataclasses.replace(admin_and_client().keys[CLIENT_KEY], limits=limits)
    drawn = access.draw_keys([key], wanted_of("keys", {}, ()))
    assert "5 requests a minute; only a, b; until" in drawn


def everything(shown: Snapshot) -> str:
    wanted = wanted_of("x", {}, ("name",))
    one, asked = shown.view.nodes[0], shown.view.requests[0]
    chronicle = fake_chronicle(ManualClock())
    entries = [
        dataclasses.replace(e, text=EVIL, request_id=EVIL)
        for e in chronicle.page(offset=0, limit=9)[0]
    ]
    past = dataclasses.replace(past_request(3), reason=EVIL, finish_reason=EVIL, request_id=EVIL)
    series = NodeSeries()
    series.stage_ms.extend([1.0, 2.0])
    series.tokens_per_s.extend([1.0, 2.0])
    series.sent_bytes_per_s.extend([1.0, 2.0])
    parts = [
        network_map.draw_maps(shown),
        models.draw_model_list(shown, {EVIL: SPEC}),
        nodes.draw_node_list(shown, wanted),
        node.draw_head(shown, one.node_id, None),
        node.draw_node(shown, one, None),
        node.draw_history(series),
        node.draw_hops(one, shown.names),
        node.draw_requests_of(shown, one.node_id, [asked]),
        requests.draw_open(shown, wanted),
        requests.draw_past([past], 1, wanted, {past.key_id: EVIL}),
        request.draw_request(shown, asked, EVIL),
        request.draw_past_request(past, EVIL),
        events.draw_events(entries, 4, wanted, dict.fromkeys(NAMES, EVIL)),
        plan.draw_plan_in_force(shown),
    ]
    return "".join(parts)


def test_every_foreign_text_on_the_new_pages_is_escaped() -> None:
    view = network_view()
    evil = partial(dataclasses.replace, display_name=EVIL, device_name=EVIL, last_error=EVIL)
    decision = dataclasses.replace(view.requests[0].decisions[0], why=EVIL)
    asked = dataclasses.replace(
        view.requests[0], request_id=EVIL, model_id=EVIL, reason=EVIL, decisions=(decision,)
    )
    bad = dataclasses.replace(
        view,
        nodes=tuple(evil(n, model_id=EVIL, compute_dtype="float32") for n in view.nodes),
        models=(dataclasses.replace(view.models[0], model_id=EVIL, lack=EVIL, is_ready=False),),
        requests=(asked,),
    )
    shown = snapshot(bad, by_id={n.node_id: n for n in bad.nodes})
    drawn = everything(shown)
    assert "<img" not in drawn
    assert not re.search(r'"[^"<>]*onerror="', drawn)
    whole = everything(snapshot(view, by_id={n.node_id: n for n in view.nodes}))
    for fact in ("hop from attic-3060", "the cheapest of two chains", "layers 10\u201319"):
        assert fact in whole
