"""A row that waits for the draft model, as stories: it goes once, with what is guessed, or ends."""

import itertools

from node.core import effects as ef
from node.core.drafting import DraftRecord
from node.core.events import (
    BrokenReceived,
    CloseReceived,
    Drafted,
    DraftModelChanged,
    GatewayLinkUp,
    Ticked,
)
from node.core.guessing import WAIT_MS
from node.core.messages import Broken, KeptRoute, StatusCode
from node.core.state import Limits
from plait.types import DraftState, FinishReason, Reason
from tests.unit.node.story import A, B, Outcome, Story, only, rid, to_gateway

GUESSING = Limits(drafts_max=4)


def begun(*, drafts: bool = True) -> Story:
    """A first stage with a draft model whose worth is known, and a chain whose trips are."""
    story = Story(0, limits=GUESSING)
    if drafts:
        story.tell(DraftModelChanged(state=DraftState.GUESSING))
    story.open(prompt_tokens=4, max_new_tokens=60, kv_tokens=90)
    story.step(Outcome(0, 4, hidden=b"h" * 4, sample=True))
    return story


def turn(story: Story, position: int, token_id: int) -> list[ef.Effect]:
    """A token comes round 80 ms after its row went."""
    story.now_ms += 80
    return story.ring_token(position, token_id, drafts_max=4)


def at_wait() -> tuple[Story, ef.Draft, int]:
    """Up to the first row that waits, whose position is the last of these."""
    story = begun()
    (ask,) = only(turn(story, 4, 100), ef.Draft)
    assert (ask.start, ask.token_ids, ask.is_waited) == (0, (0, 1, 2, 3, 100), False)
    story.step(Outcome(4, hidden=b"h", sample=True))
    story.tell(Drafted(rid(), 1, (101, 102, 103, 104), 1.0))
    for position in itertools.count(5):
        out = turn(story, position, 96 + position)
        if asks := only(out, ef.Draft):
            assert asks[0].is_waited and not only(out, ef.SubmitRows)
            return story, asks[0], position
        num_rows = only(out, ef.SubmitRows)[0].num_tokens
        assert num_rows == 1, "what a trip takes is not known yet"
        story.step(Outcome(position, hidden=b"h", sample=True))
    raise AssertionError


def test_a_row_goes_with_the_models_guesses_when_they_are_there() -> None:
    story, ask, position = at_wait()
    assert ask.start == 5 and ask.count == 4 and ask.kv_tokens == 90
    (work,) = only(story.tell(Drafted(rid(), 1, (7, 8, 9, 6), 1.0)), ef.SubmitRows)
    assert (work.position, work.token_ids) == (position, (96 + position, 7, 8, 9, 6))
    assert work.drafted_ids == (7, 8, 9, 6)
    story.step(Outcome(position, 5, hidden=b"h" * 5, sample=True))
    turn(story, position + 3, 50)
    counters = story.core.counters
    assert (counters.tokens_drafted_by_model, counters.drafts_accepted_by_model) == (4, 2)
    assert counters.tokens_drafted == 4 and counters.drafts_accepted == 2


def test_and_without_where_there_are_none() -> None:
    story, _, position = at_wait()
    (work,) = only(story.tell(Drafted(rid(), 1, ())), ef.SubmitRows)
    assert (work.position, work.drafted_ids) == (position, ())
    assert only(story.tell(Drafted(rid(), 1, (7,))), ef.SubmitRows) == [], "said twice"
    story.step(Outcome(position, hidden=b"h", sample=True))
    assert only(turn(story, position + 1, 3), ef.Draft) == []


def test_a_draft_model_that_is_lost_holds_up_no_row_and_is_asked_no_more() -> None:
    story, _, position = at_wait()
    lost = DraftModelChanged(state=DraftState.LOST, why="its thread died", is_final=True)
    (work,) = only(story.tell(lost), ef.SubmitRows)
    assert (work.position, work.drafted_ids) == (position, ())
    story.step(Outcome(position, hidden=b"h", sample=True))
    assert only(turn(story, position + 1, 3), ef.Draft) == []
    story.tell(DraftModelChanged(state=DraftState.GUESSING))  # of layers that are loaded later
    assert story.core.draft_state == (DraftState.LOST, "its thread died")
    assert story.core._node.drafts is None


def test_a_draft_model_that_hangs_holds_a_row_up_for_two_seconds() -> None:
    story, _, position = at_wait()
    story.now_ms += WAIT_MS - 1
    assert only(story.tell(Ticked()), ef.SubmitRows) == []
    story.now_ms += 500
    (work,) = only(story.tell(Ticked()), ef.SubmitRows)
    assert (work.position, work.drafted_ids) == (position, ())
    assert story.tell(Drafted(rid(), 1, (7, 8), 1.0)) == [], "too late"


def test_a_token_that_comes_twice_starts_nothing_while_its_row_waits() -> None:
    story, _, position = at_wait()
    assert turn(story, position, 96 + position) == []
    assert story.core.counters.frames_duplicate == 1


def test_who_leaves_while_a_row_waits_frees_everything() -> None:
    """The client goes, or a stage is lost; what the model guesses then is nobody's."""
    broken = Broken(
        request_id=rid(),
        epoch=1,
        stage_index=1,
        node_id=B,
        code=StatusCode.UNAVAILABLE,
        reason=Reason(code="gone", message="gone"),
    )
    for event in (
        CloseReceived(sender=None, request_id=rid(), epoch=1, reason=FinishReason.CANCELLED),
        BrokenReceived(B, broken),
    ):
        story, _, _ = at_wait()
        assert only(story.tell(event), ef.ReleaseKv) == [ef.ReleaseKv(rid(), 1)]
        assert story.tell(Drafted(rid(), 1, (7, 8), 1.0)) == []
        assert story.core.num_sessions == 0


def test_a_restarted_gateway_hears_of_a_row_that_waits_where_it_is() -> None:
    story, _, position = at_wait()
    (kept,) = to_gateway(story.tell(GatewayLinkUp()), KeptRoute)
    assert kept.position == position


def test_without_a_draft_model_none_is_asked() -> None:
    story = begun(drafts=False)
    for position in range(4, 12):
        out = turn(story, position, 96 + position)
        assert only(out, ef.Draft) == [] and len(only(out, ef.SubmitRows)) == 1
        story.step(Outcome(position, hidden=b"h", sample=True))


def test_what_was_known_of_a_model_is_forgotten_with_what_it_guessed_for() -> None:
    story = begun()
    record = story.core._node.drafts
    assert isinstance(record, DraftRecord)
    story.tell(DraftModelChanged(state=DraftState.GUESSING))
    assert story.core._node.drafts is not record
    story.tell(DraftModelChanged(state=DraftState.REFUSED, why="other words"))
    assert story.core._node.drafts is None


def test_a_node_alone_drafts_too() -> None:
    """First and last stage in one: tokens come from its own steps."""
    story = Story(0, (A,), limits=GUESSING)
    story.tell(DraftModelChanged(state=DraftState.GUESSING))
    story.open(prompt_tokens=4, max_new_tokens=60, kv_tokens=90)
    out = story.step(Outcome(0, 4, token_id=100, sample=True))
    assert len(only(out, ef.Draft)) == 1 and len(only(out, ef.SubmitRows)) == 1
    assert len(to_gateway(out, object)) >= 1
