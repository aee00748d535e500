"""`plait status` draws what the coordinator says, and survives what it does not say."""

import dataclasses
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from coordinator.core.view import DepartedView, PlanChangeView
from coordinator.view_json import network_from_json
from plait.cli.fields import Fields
from plait.cli.status_parts import layers
from plait.cli.status_view import draw, strip
from plait.errors import FrameError
from tests.unit.dashboard.fakes import network_view


def shown(view: Fields, *, width: int = 160) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(draw(view))
    return console.export_text()


def of_network(*, is_whole: bool) -> Fields:
    return Fields.parse(json.dumps(dataclasses.asdict(network_view(is_whole=is_whole))))


def test_a_whole_network() -> None:
    drawn = shown(of_network(is_whole=True))
    assert "3 of 4 nodes serve" in drawn
    assert "111112222222222222221111111111" in drawn
    assert "attic-3060 0-9 > lab-4090 10-19 > dorm-m2 20-29" in drawn
    assert "fetching 33 %" in drawn
    assert "-12 % / -" in drawn  # predicted decodes are 12 % below what is observed
    assert "plan #4  HiGHS, optimal, 41.7 tokens/s of at most 43.2" in drawn


def test_shares_of_demand_are_said_where_several_models_are_served() -> None:
    view = network_view()
    model = dataclasses.replace(
        view.models[0], demand_share=0.75, is_demand_given=True, replicas_min=2
    )
    drawn = shown(Fields.parse(json.dumps(dataclasses.asdict(view))))
    assert "demand" not in drawn
    view = dataclasses.replace(view, models=(model,))
    drawn = shown(Fields.parse(json.dumps(dataclasses.asdict(view))))
    assert "75 % of demand (set), at least 2 chains" in drawn


def test_who_stands_by_is_told_why() -> None:
    view = network_view()
    first, *others = view.nodes
    idle = dataclasses.replace(first, state="standby", span=None, span_reason="no layer fits")
    view = dataclasses.replace(view, nodes=(idle, *others))
    drawn = shown(Fields.parse(json.dumps(dataclasses.asdict(view))))
    assert f"{idle.display_name}: standby: no layer fits" in drawn


def test_a_node_that_left_keeps_its_name_in_routes() -> None:
    view = network_view()
    left, *stay = view.nodes
    gone = DepartedView(node_id=left.node_id, display_name=left.display_name)
    view = dataclasses.replace(view, nodes=tuple(stay), departed=(gone,))
    drawn = shown(Fields.parse(json.dumps(dataclasses.asdict(view))))
    assert "attic-3060 0-9 > lab-4090 10-19" in drawn
    assert left.node_id not in drawn


def test_eighty_columns_keep_names_figures_and_a_line_for_each_request() -> None:
    view = network_view()
    long = "waited 30 s: no serving node holds layers 0-29 of smollm2-135m-instruct; waiting"
    failed = dataclasses.replace(
        view.requests[0], request_id="f" * 32, route=(), reason=long, state="failed"
    )
    view = dataclasses.replace(view, requests=(*view.requests, failed))
    drawn = shown(Fields.parse(json.dumps(dataclasses.asdict(view))), width=80)
    lines = drawn.splitlines()
    assert all(len(line) <= 80 for line in lines)
    for name in ("attic-3060", "lab-4090", "dorm-m2"):
        assert any(line.startswith(name) for line in lines), drawn
    header = next(at for at, line in enumerate(lines) if line.startswith("request"))
    rows = lines[header + 1 : lines.index("", header)]
    assert len([row for row in rows if row.strip()]) == len(view.requests), drawn
    assert "waited 30 s" in drawn


def test_only_as_many_requests_as_are_wanted() -> None:
    view = of_network(is_whole=True)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(draw(view, requests_max=1))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    header = next(at for at, line in enumerate(lines) if line.startswith("request"))
    assert lines[header + 2] == ""


def test_requests_that_ended_are_listed_by_when_they_did_not_by_how_long_they_took() -> None:
    view = network_view()
    slow, quick = (
        dataclasses.replace(view.requests[2], request_id=name, age_ms=age_ms, total_ms=age_ms)
        for name, age_ms in (("slow", 90_000), ("quick", 400))
    )
    view = dataclasses.replace(view, requests=(slow, quick, *view.requests[:2]))
    drawn = shown(Fields.parse(json.dumps(dataclasses.asdict(view))))
    places = [drawn.index(name) for name in ("req-0001", "req-0002", "slow", "quick")]
    assert places == sorted(places)


def test_times_to_the_first_token_are_whole_milliseconds_and_refusals_no_failures() -> None:
    view = network_view()
    request = dataclasses.replace(view.requests[0], ttft_ms=46)
    counters = dataclasses.replace(view.counters, requests_failed=0, requests_refused=2)
    view = dataclasses.replace(view, requests=(request,), counters=counters)
    drawn = shown(Fields.parse(json.dumps(dataclasses.asdict(view))))
    assert " 46 ms" in drawn
    assert "0 failed, 2 refused" in drawn


def test_missing_layers_and_errors_are_named() -> None:
    drawn = shown(of_network(is_whole=False))
    assert "layers 10-19 of 30 have no node, 142 MiB are missing. One more node" in drawn
    assert "lab-4090: lease ended" in drawn


def test_an_empty_network_says_what_helps() -> None:
    view = dataclasses.replace(network_view(), nodes=(), models=(), requests=(), plan=None)
    drawn = shown(Fields.parse(json.dumps(dataclasses.asdict(view))))
    assert "plait token create" in drawn
    assert "no plan yet" in drawn


def test_markup_in_names_is_only_text() -> None:
    view = network_view()
    node = dataclasses.replace(view.nodes[0], display_name="[red]boo[/red]")
    view = dataclasses.replace(view, nodes=(node,))
    assert "[red]boo[/red]" in shown(Fields.parse(json.dumps(dataclasses.asdict(view))))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "5", "[" * 100_000])
def test_no_view_is_a_clear_error(text: str) -> None:
    with pytest.raises(FrameError, match="no view"):
        Fields.parse(text)


NAMES = sorted({f.name for f in dataclasses.fields(network_view())} | {"span", "route", "state"})
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(NAMES), values))
def test_any_object_can_be_drawn(content: dict[str, object]) -> None:
    shown(Fields(content))


def test_a_long_model_folds_and_missing_layers_stand_out() -> None:
    drawn = strip([1] * 64 + [0, 12])
    assert drawn.plain == "1" * 64 + "\n0+"
    assert layers(None) == "-"
    assert layers((3, 4)) == "3-3"


def test_what_plans_moved_is_said_the_newest_few() -> None:
    changes = tuple(
        PlanChangeView(
            age_ms=90_000 * (at + 1),
            epoch=9 - at,
            cause="repair",
            tokens_per_s=3.0,
            moved_nodes=at,
            moved_bytes=3 << 29,
            fetched_bytes=1 << 28,
        )
        for at in range(5)
    )
    view = dataclasses.replace(network_view(), changes=changes)
    drawn = shown(Fields.parse(json.dumps(dataclasses.asdict(view))))
    assert (
        "1 min ago, repair (plan #9): 0 nodes moved, 1.50 GiB to load, 0.25 GiB of them to fetch"
        in drawn
    )
    assert "plan #7" in drawn and "plan #6" not in drawn
    assert network_from_json(json.dumps(dataclasses.asdict(view))).changes == changes
