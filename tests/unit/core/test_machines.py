"""The tables themselves."""

from pathlib import Path

import pytest

from coordinator.core import effects as fx
from coordinator.core.core import Core
from coordinator.core.machines import (
    NODE,
    PIPELINE,
    REQUEST,
    NodeState,
    NodeTrigger,
    PipelineState,
    RequestState,
    advance,
    diagram,
)
from plait.errors import IllegalTransition
from tests.unit.core.stories import Story, only


def test_every_state_has_a_row_and_final_ones_are_empty() -> None:
    assert set(NODE) == set(NodeState)
    assert set(PIPELINE) == set(PipelineState)
    assert set(REQUEST) == set(RequestState)
    assert NODE[NodeState.GONE] == {}
    assert PIPELINE[PipelineState.CLOSED] == PIPELINE[PipelineState.BROKEN] == {}
    for state in (RequestState.FINISHED, RequestState.FAILED, RequestState.CANCELLED):
        assert REQUEST[state] == {}


def test_a_missing_cell_raises_and_says_which() -> None:
    with pytest.raises(IllegalTransition, match="node 'a': loaded is not allowed in state gone"):
        advance("node", NODE, "a", NodeState.GONE, NodeTrigger.LOADED)


def test_time_never_goes_back_for_the_core() -> None:
    story = Story()
    story.join("a")
    core: Core = story.core
    core.handle(story.beat("a"), story.now_ms - 500)
    assert core.state.now_ms == story.now_ms


def test_the_view_names_recent_requests_missing_layers_and_counts() -> None:
    story = Story()
    view = story.core.view(story.now_ms)
    assert view.plan is None and view.models[0].missing == ((0, 30),)
    assert view.models[0].missing_bytes > 0 and "Join a node with at least" in view.models[0].advice
    story.start("a", "b", "c")
    for index in range(60):
        opened = only(story.submit(f"r{index}"), fx.OpenRoute)
        assert len(opened) == 1
        story.finish(f"r{index}")
    story.submit("open")
    view = story.core.view(story.now_ms)
    assert len(view.requests) == 51 and view.requests[0].request_id == "open"
    assert view.requests[1].request_id == "r59" and view.requests[1].finish_reason == "length"
    assert view.models[0].replicas_per_layer == (1,) * 30
    assert view.counters.tokens_generated == 60 * 20
    assert [n.num_requests for n in view.nodes] == [1, 1, 1]
    assert all(n.predicted_stage_ms > 0 for n in view.nodes)


def test_the_docs_show_the_tables_as_they_are() -> None:
    text = (Path(__file__).parents[3] / "docs" / "scheduling.md").read_text("utf-8")
    for shown in (diagram(NODE), diagram(PIPELINE), diagram(REQUEST)):
        assert shown in text
