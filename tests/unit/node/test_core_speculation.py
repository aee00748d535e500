"""Guesses in a frame, as stories: what each stage makes of them, and of those that were wrong."""

from collections.abc import Sequence

import pytest

from node.core import effects as ef
from node.core.events import GatewayLinkUp
from node.core.messages import Activations, Close, KeptRoute, StageOpen, Token
from node.core.speculation import Proposer
from node.core.state import Limits
from plait.prefixes import BlockNamer, cache_salt
from plait.types import FinishReason
from tests.unit.node.story import A, B, C, Outcome, Story, broken_code, only, sent, to_gateway

GUESSING = Limits(drafts_max=4)
SALT = cache_salt("network", "key")


class Says:
    """Guesses what it is told to, and remembers what it heard."""

    def __init__(self, *guesses: int) -> None:
        self.guesses = guesses
        self.heard: list[tuple[int, ...]] = []
        self.most: list[int] = []

    def begin(self, opened: StageOpen, prompt: Sequence[int]) -> Proposer:
        return self

    def drew(self, token_ids: Sequence[int], now_ms: int) -> None:
        self.heard.append(tuple(token_ids))

    def propose(self, most: int, num_sharing: int, now_ms: int) -> tuple[int, ...]:
        self.most.append(most)
        return self.guesses[:most]


def works(effects: list[ef.Effect]) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    return [
        (w.position, tuple(w.token_ids or ()), w.drafted_ids) for w in only(effects, ef.SubmitRows)
    ]


def first_stage(says: Says, **opened: object) -> Story:
    """Open, its prompt of four run, and the first token back."""
    story = Story(0, limits=GUESSING, proposers=says)
    story.open(**opened)
    story.step(Outcome(0, 4, hidden=b"h" * 4, sample=True))
    return story


def test_the_first_stage_sends_guesses_behind_its_row() -> None:
    says = Says(7, 8)
    story = first_stage(says)
    out = story.ring_token(4, 5, drafts_max=4)
    assert works(out) == [(4, (5, 7, 8), (7, 8))]
    ((_, frame),) = sent(story.step(Outcome(4, 3, hidden=b"h" * 3, sample=True)), Activations)
    assert (frame.position, frame.num_tokens, frame.drafted_ids) == (4, 3, (7, 8))
    assert not frame.is_prompt


@pytest.mark.parametrize("num_right", [0, 1, 2])
def test_how_far_the_next_token_is_away_says_how_many_were_right(num_right: int) -> None:
    says = Says(7, 8)
    story = first_stage(says)
    story.ring_token(4, 5, drafts_max=4)
    story.step(Outcome(4, 3, hidden=b"h" * 3, sample=True))
    out = story.ring_token(5 + num_right, 9, drafts_max=4)
    assert works(out) == [(5 + num_right, (9, 7, 8), (7, 8))]
    assert says.heard == [(5,), (*(7, 8)[:num_right], 9)]
    assert story.core.counters.drafts_accepted == num_right
    assert story.core.counters.tokens_drafted == 4


def test_a_token_before_the_guesses_or_beyond_them_is_none_of_theirs() -> None:
    story = first_stage(Says(7, 8))
    story.ring_token(4, 5, drafts_max=4)
    assert story.ring_token(4, 9, drafts_max=4) == []
    assert story.core.counters.frames_duplicate == 1
    assert broken_code(story.ring_token(5, 9, drafts_max=4)) == "frame_early"
    story = first_stage(Says(7, 8))
    story.ring_token(4, 5, drafts_max=4)
    story.step(Outcome(4, 3, hidden=b"h" * 3, sample=True))
    assert broken_code(story.ring_token(8, 9, drafts_max=4)) == "frame_gap"


@pytest.mark.parametrize("said", [None, 3])
def test_all_stages_have_to_agree(said: int | None) -> None:
    """A stage that knows of no guesses passes the word on without them, and the ring says so."""
    story = Story(0, limits=GUESSING, proposers=Says(7, 8))
    ((_, passed_on),) = sent(story.open(drafts_max=said), StageOpen)
    assert passed_on.drafts_max == (said or 4)
    story.step(Outcome(0, 4, hidden=b"h" * 4, sample=True))
    assert works(story.ring_token(4, 5, drafts_max=1)) == [(4, (5, 7), (7,))]
    story.step(Outcome(4, 2, hidden=b"h" * 2, sample=True))
    assert works(story.ring_token(5, 5)) == [(5, (5,), ())]


def test_the_least_of_all_stages_goes_round() -> None:
    story = Story(1, limits=Limits(drafts_max=2))
    ((_, passed_on),) = sent(story.open(drafts_max=9), StageOpen)
    assert passed_on.drafts_max == 2
    last = Story(2, limits=Limits(drafts_max=9))
    last.open(drafts_max=2)
    last.rows(0, 4)
    ((_, token),) = sent(last.step(Outcome(0, 4, token_id=5, sample=True)), Token)
    assert token.drafts_max == 2


def test_who_was_asked_for_none_guesses_none() -> None:
    for story in (Story(0, proposers=Says(7)), Story(0, limits=GUESSING, proposers=Says(7))):
        story.open(drafts_max=0)
        story.step(Outcome(0, 4, hidden=b"h" * 4, sample=True))
        assert works(story.ring_token(4, 5, drafts_max=4)) == [(4, (5,), ())]


def test_no_guess_goes_beyond_the_last_token() -> None:
    says = Says(7, 8, 9, 6)
    story = first_stage(says, max_new_tokens=3)
    assert works(story.ring_token(4, 5, drafts_max=4)) == [(4, (5, 7), (7,))]
    story.step(Outcome(4, 2, hidden=b"h" * 2, sample=True))
    assert works(story.ring_token(5, 9, drafts_max=4)) == [(5, (9,), ())]
    says = Says(7, 8, 9, 6)
    story = first_stage(says, max_new_tokens=50, kv_tokens=7)
    assert works(story.ring_token(4, 5, drafts_max=4)) == [(4, (5, 7, 8), (7, 8))]


def guessed(story: Story, position: int, drafted: tuple[int, ...]) -> list[ef.Effect]:
    """Rows with guesses come, and run."""
    out = story.rows(position, 1 + len(drafted), drafted=drafted)
    if not only(out, ef.SubmitRows):
        return out
    return story.step(Outcome(position, 1 + len(drafted), hidden=b"h" * 3, sample=True))


def middle_stage() -> Story:
    story = Story(1, limits=GUESSING)
    story.open(drafts_max=4)
    story.rows(0, 4)
    story.step(Outcome(0, 4, hidden=b"h" * 4))
    return story


@pytest.mark.parametrize("position", [5, 6, 7])
def test_a_middle_stage_learns_from_the_next_rows_what_was_wrong(position: int) -> None:
    story = middle_stage()
    ((node, frame),) = sent(guessed(story, 4, (7, 8)), Activations)
    assert (node, frame.drafted_ids) == (C, (7, 8))
    (work,) = only(story.rows(position), ef.SubmitRows)
    assert (work.position, work.num_tokens, work.drafted_ids) == (position, 1, ())
    ((_, frame),) = sent(story.step(Outcome(position, hidden=b"h", sample=True)), Activations)
    assert (frame.position, frame.drafted_ids) == (position, ())


def test_positions_only_ever_rise_but_for_guesses() -> None:
    story = middle_stage()
    guessed(story, 4, (7, 8))
    assert guessed(story, 4, (7, 8)) == [], "the same once more"
    assert story.core.counters.frames_duplicate == 1
    guessed(story, 5, ())
    assert story.rows(5) == [] and story.core.counters.frames_duplicate == 2
    assert broken_code(story.rows(7)) == "frame_gap"


def test_rows_that_come_before_the_guesses_have_run_are_refused() -> None:
    story = middle_stage()
    story.rows(4, 3, drafted=(7, 8))
    out = story.rows(5)
    assert broken_code(out) == "frame_early" and only(out, ef.ReleaseKv)


@pytest.mark.parametrize(
    ("num_tokens", "drafted", "sample"),
    [(3, (7,), True), (2, (7, 8), True), (6, (7,) * 5, True), (2, (1000,), True), (2, (7,), False)],
)
def test_guesses_that_will_not_do(num_tokens: int, drafted: tuple[int, ...], sample: bool) -> None:
    story = middle_stage()
    out = story.rows(4, num_tokens, drafted=drafted, sample=sample)
    assert broken_code(out) == "frame_drafts"
    assert story.core.counters.frames_malformed == 1


def last_stage(**opened: object) -> Story:
    story = Story(2, limits=GUESSING)
    story.open(drafts_max=4, **opened)
    story.rows(0, 4)
    story.step(Outcome(0, 4, token_id=5, sample=True))
    story.rows(4, 4, drafted=(7, 8, 9))
    return story


def test_the_last_stage_tells_the_gateway_all_and_the_first_stage_the_last_one() -> None:
    story = last_stage()
    out = story.step(Outcome(4, 3, accepted=(7, 8), token_id=3, sample=True))
    told = [(t.position, t.token_id) for t in to_gateway(out, Token)]
    assert told == [(5, 7), (6, 8), (7, 3)]
    ((node, token),) = sent(out, Token)
    assert (node, token.position, token.token_id, token.drafts_max) == (A, 7, 3, 4)
    assert broken_code(story.rows(8)) == "frame_gap"


def test_the_last_stage_knows_where_the_next_rows_begin() -> None:
    story = last_stage()
    story.step(Outcome(4, 3, accepted=(7, 8), token_id=3, sample=True))
    assert story.rows(6) == [] and story.core.counters.frames_duplicate == 1
    assert only(story.rows(7), ef.SubmitRows)


@pytest.mark.parametrize(
    ("opened", "reason"),
    [({"stop": (8,)}, FinishReason.STOP), ({"max_new_tokens": 3}, FinishReason.LENGTH)],
)
def test_an_end_within_what_was_right_cuts_the_rest(
    opened: dict[str, object], reason: FinishReason
) -> None:
    story = last_stage(**opened)
    out = story.step(Outcome(4, 4, accepted=(7, 8, 9), token_id=3, sample=True))
    told = [(t.position, t.finish_reason) for t in to_gateway(out, Token)]
    assert told == [(5, None), (6, reason)]
    ((_, token),) = sent(out, Token)
    assert (token.position, token.finish_reason) == (6, reason)
    assert only(out, ef.ReleaseKv) and story.core.num_sessions == 0
    assert story.core.counters.tokens_drawn == 3


def test_the_first_stage_takes_an_end_among_its_guesses() -> None:
    story = first_stage(Says(7, 8))
    story.ring_token(4, 5, drafts_max=4)
    story.step(Outcome(4, 3, hidden=b"h" * 3, sample=True))
    out = story.ring_token(5, 7, finish=FinishReason.STOP)
    assert [node for node, _ in sent(out, Close)] == [B]
    assert only(out, ef.ReleaseKv) and story.core.num_sessions == 0


def test_one_stage_alone_guesses_too() -> None:
    says = Says(7, 8)
    story = Story(0, (A,), limits=GUESSING, proposers=says)
    story.open()
    out = story.step(Outcome(0, 4, token_id=5, sample=True))
    assert works(out) == [(4, (5, 7, 8), (7, 8))]
    out = story.step(Outcome(4, 2, accepted=(7,), token_id=3, sample=True))
    assert [t.position for t in to_gateway(out, Token)] == [5, 6]
    assert works(out) == [(6, (3, 7, 8), (7, 8))] and says.heard == [(5,), (7, 3)]


def test_a_block_is_named_when_its_last_token_is_no_guess_any_more() -> None:
    ids = [*range(14), 5, 7, 8, 9]
    (name,) = BlockNamer(SALT).push(ids)
    story = Story(0, limits=GUESSING, proposers=Says(7, 8))
    story.open(prompt_tokens=14, max_new_tokens=40, cache_salt=SALT)
    story.step(Outcome(0, 14, hidden=b"h" * 14, sample=True))
    (work,) = only(story.ring_token(14, 5, drafts_max=4), ef.SubmitRows)
    assert (work.num_tokens, work.block_name) == (3, None)
    story.step(Outcome(14, 3, hidden=b"h" * 3, sample=True))
    (work,) = only(story.ring_token(17, 9, drafts_max=4), ef.SubmitRows)
    assert work.block_name == name
    ((_, frame),) = sent(story.step(Outcome(17, 3, hidden=b"h" * 3, sample=True)), Activations)
    assert frame.block_name == name


def test_a_name_comes_at_most_so_many_rows_late_as_there_may_be_guesses() -> None:
    for end, code in ((19, None), (22, "frame_shape")):
        story = Story(1, limits=GUESSING)
        story.open(drafts_max=4, prompt_tokens=end - 1)
        story.rows(0, end - 1)
        story.step(Outcome(0, end - 1, hidden=b"h" * (end - 1)))
        out = story.rows(end - 1, 3, drafted=(7, 8), block_name=b"n" * 16)
        if code is None:
            (work,) = only(out, ef.SubmitRows)
            assert work.block_name == b"n" * 16
        else:
            assert broken_code(out) == code


def test_a_restarted_gateway_hears_of_no_guesses() -> None:
    story = middle_stage()
    guessed(story, 4, (7, 8))
    (kept,) = to_gateway(story.tell(GatewayLinkUp()), KeptRoute)
    assert kept.position == 5
