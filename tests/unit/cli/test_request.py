"""`plait request show`: from the core's own records to words."""

import json
from dataclasses import asdict
from io import StringIO

import pytest
from rich.console import Console

from coordinator.core import events as ev
from coordinator.core.view import NetworkView
from coordinator.view_json import network_from_json
from plait.cli.request import draw, find
from plait.errors import ConfigError
from plait.types import NodeId, Reason, RequestId
from tests.unit.core.stories import Story


def view_of(story: Story) -> NetworkView:
    """As the CLI gets it: through JSON."""
    return network_from_json(json.dumps(asdict(story.core.view(story.now_ms))))


def words(view: NetworkView, request_id: str) -> str:
    out = StringIO()
    console = Console(file=out, width=200)
    for part in draw(find(view.requests, request_id), {"a": "Ada's machine"}):
        console.print(part)
    return out.getvalue()


def test_a_choice_is_explained_with_its_rivals() -> None:
    story = Story()
    story.start("a", "b", memory_mib=2_000)
    story.submit("r1")
    text = words(view_of(story), "r1")
    assert "opening" in text and "chain: " in text and "chosen" in text
    assert "Ada's machine" in text and "expected: first token after" in text
    assert "of 2 usable chains" in text


def test_a_price_is_told_in_parts_and_a_wait_by_who_is_full() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1", prompt=4_000, new=96)
    text = words(view_of(story), "r1")
    assert all(part in text for part in ("price", "wait", "prefill", "decode", "hops"))
    story.submit("r2", prompt=4_000, new=96)
    assert "Ada's machine: no room: 0 of 4096 tokens free" in words(view_of(story), "r2")
    story.finish("r1", num=96)
    assert "all after" in words(view_of(story), "r1")
    request = find(view_of(story).requests, "r2")
    assert [(d.verdict, d.epoch) for d in request.decisions] == [("queue", 0), ("now", 1)]
    assert request.decisions[1].considered[0].decode_ms is not None


def test_a_wait_and_a_second_chain_are_told_in_order() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1")
    story.tell(
        ev.RouteBroke(
            request_id=RequestId("r1"),
            epoch=1,
            node_id=NodeId("a"),
            reason=Reason(code="hop_broken", message="reset"),
        )
    )
    story.wait(500, beating=("a",))
    decisions = find(view_of(story).requests, "r1").decisions
    assert [d.verdict for d in decisions] == ["now", "queue", "now"]
    assert "its chain broke" in words(view_of(story), "r1")


def test_ended_requests_keep_their_story_and_decisions_are_bounded() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1")
    for epoch in range(1, 6):
        story.tell(
            ev.RouteBroke(
                request_id=RequestId("r1"),
                epoch=epoch,
                node_id=NodeId("a"),
                reason=Reason(code="hop_broken", message="reset"),
            )
        )
        story.wait(8_000, beating=("a",))
    story.finish("r1", epoch=6)
    request = find(view_of(story).requests, "r")
    assert request.state == "finished" and len(request.decisions) == 4
    assert "first token after" in words(view_of(story), "r1")


def test_an_unknown_or_ambiguous_request_is_told_what_helps() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1")
    story.submit("r2")
    for wrong in ("x", "r"):
        with pytest.raises(ConfigError, match="plait status"):
            find(view_of(story).requests, wrong)
