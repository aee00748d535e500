"""How a chain agrees on what of a prompt it has already, as stories."""

from dataclasses import replace

from node.core import effects as ef
from node.core import events as ev
from node.core.messages import (
    Activations,
    Broken,
    KeptRoute,
    Opened,
    PrefixShort,
    StageOpen,
    StatusCode,
)
from node.core.prefixes import cache_path
from node.core.state import Limits
from plait.prefixes import BlockNamer, cache_salt
from plait.types import DType, LayerSpan, NodeId, Reason
from tests.unit.node.story import (
    ROW,
    SPEC,
    A,
    B,
    C,
    Outcome,
    Story,
    broken_code,
    only,
    opened,
    rid,
    sent,
    stages,
    to_gateway,
)

SALT = cache_salt("network", "key")
NAMES = BlockNamer(SALT).push(range(64))


def positions(effects: list[ef.Effect]) -> list[tuple[int, int]]:
    return [(rows.position, rows.num_tokens) for rows in only(effects, ef.SubmitRows)]


def short(blocks: int, sender: NodeId = C, *, epoch: int = 1) -> ev.PrefixShortReceived:
    return ev.PrefixShortReceived(sender, PrefixShort(rid(), epoch, blocks))


def test_the_first_stage_names_blocks_and_runs_what_it_has_not() -> None:
    story = Story(0, limits=Limits(prefill_chunk_tokens=20))
    out = story.open(prompt_tokens=50, cache_salt=SALT, has_tokens=32)
    (reserve,) = only(out, ef.ReserveKv)
    assert (reserve.open.block_names, reserve.open.cached_blocks) == (NAMES[:3], 3)
    ((_, passed_on),) = sent(out, StageOpen)
    assert (passed_on.block_names, passed_on.cached_blocks) == (NAMES[:3], 2)
    assert positions(out) == [(32, 18)]


def test_a_prompts_last_token_is_always_run() -> None:
    (reserve,) = only(Story(0).open(prompt_tokens=48, cache_salt=SALT), ef.ReserveKv)
    assert (len(reserve.open.block_names), reserve.open.cached_blocks) == (3, 2)


def test_without_a_salt_nothing_is_named() -> None:
    (reserve,) = only(Story(0).open(prompt_tokens=50), ef.ReserveKv)
    assert (reserve.open.block_names, reserve.open.cached_blocks) == ((), 0)


def test_a_stage_that_has_all_of_it_waits_for_the_rest() -> None:
    story = Story(1)
    out = story.open(prompt_tokens=50, block_names=NAMES[:3], cached_blocks=2, has_tokens=32)
    assert sent(out, PrefixShort) == []
    assert positions(story.rows(32, 18)) == [(32, 18)]


def test_the_last_stage_tells_the_gateway_what_did_not_have_to_run() -> None:
    story = Story(2)
    out = story.open(prompt_tokens=50, block_names=NAMES[:3], cached_blocks=2, has_tokens=16)
    assert to_gateway(out, Opened) == [Opened(request_id=rid(), epoch=1, cached_tokens=16)]
    story.tell(ev.GatewayLinkDown())
    (kept,) = to_gateway(story.tell(ev.GatewayLinkUp()), KeptRoute)
    assert kept.cached_tokens == 16, "and one that has restarted"


def test_a_stage_that_has_less_says_so_and_drops_rows_from_further_on() -> None:
    story = Story(1)
    out = story.open(prompt_tokens=50, block_names=NAMES[:3], cached_blocks=2, has_tokens=16)
    assert sent(out, PrefixShort) == [(A, PrefixShort(rid(), 1, 1))]
    ((_, passed_on),) = sent(out, StageOpen)
    assert passed_on.cached_blocks == 1, "no later stage needs more than this one has"
    assert story.rows(32, 18) == []
    assert story.core.counters.frames_late == 1
    assert positions(story.rows(16, 34)) == [(16, 34)]
    assert broken_code(story.rows(60, 1)) == "frame_gap", "from here on a gap is a gap"


def test_word_of_a_shorter_prefix_goes_back_and_is_heeded_on_the_way() -> None:
    story = Story(1)
    story.open(prompt_tokens=50, block_names=NAMES[:3], cached_blocks=2, has_tokens=32)
    story.rows(32, 18)
    out = story.tell(short(1))
    assert sent(out, PrefixShort) == [(A, PrefixShort(rid(), 1, 1))]
    assert only(out, ef.RewindKv) == [ef.RewindKv(rid(), 1, 16)]
    assert story.step(Outcome(32, 18, hidden=ROW * 18)) == [], "a step of before the word came"
    assert positions(story.rows(16, 34)) == [(16, 34)]
    out = story.step(Outcome(16, 34, hidden=ROW * 34))
    assert [m.position for _, m in sent(out, Activations)] == [16]
    assert story.tell(short(1)) == [] and story.tell(short(3)) == []


def test_the_first_stage_runs_the_prompt_again_from_the_shortest_prefix() -> None:
    story = Story(0, limits=Limits(prefill_chunk_tokens=40))
    story.open(prompt_tokens=50, cache_salt=SALT, has_tokens=48)
    out = story.tell(short(2, B))
    assert only(out, ef.RewindKv) == [ef.RewindKv(rid(), 1, 32)]
    assert positions(out) == [(32, 18)]
    assert positions(story.tell(short(0, B))) == [(0, 40), (40, 10)]


def test_a_stage_cannot_miss_a_prompt_that_has_run() -> None:
    story = Story(0)
    story.open(prompt_tokens=50, cache_salt=SALT, has_tokens=48)
    story.step(Outcome(48, 2, hidden=ROW * 2, sample=True))
    story.ring_token(50)
    out = story.tell(short(0, B))
    (broken,) = to_gateway(out, Broken)
    assert (broken.node_id, broken.reason.code) == (B, "prefix_late")


def test_only_the_next_stage_may_say_it_has_less() -> None:
    story = Story(1)
    story.open(prompt_tokens=50, block_names=NAMES[:3], cached_blocks=2, has_tokens=32)
    assert story.tell(short(1, A)) == [] and story.tell(short(1, C, epoch=2)) == []
    assert (story.core.counters.frames_foreign, story.core.counters.frames_late) == (1, 1)


def test_a_block_of_drawn_tokens_is_named_as_its_last_row_goes_by() -> None:
    story = Story(0)
    story.open(prompt_tokens=15, cache_salt=SALT)
    story.step(Outcome(0, 15, hidden=ROW * 15, sample=True))
    (rows,) = only(story.ring_token(15, token_id=15), ef.SubmitRows)
    assert rows.block_name == NAMES[0]
    ((_, passed_on),) = sent(story.step(Outcome(15, hidden=ROW, sample=True)), Activations)
    assert passed_on.block_name == NAMES[0]
    (rows,) = only(story.ring_token(16, token_id=16), ef.SubmitRows)
    assert rows.block_name is None


def test_a_later_stage_files_under_the_name_and_passes_it_on() -> None:
    story = Story(1)
    story.open(prompt_tokens=15)
    story.rows(0, 15)
    story.step(Outcome(0, 15, hidden=ROW * 15))
    named = Activations(rid(), 1, 15, 1, ROW, sample=True, block_name=NAMES[0])
    (rows,) = only(story.tell(ev.ActivationsReceived(A, named)), ef.SubmitRows)
    assert rows.block_name == NAMES[0]
    ((_, passed_on),) = sent(story.step(Outcome(15, hidden=ROW, sample=True)), Activations)
    assert passed_on.block_name == NAMES[0]
    astray = Activations(rid(), 1, 16, 1, ROW, sample=True, block_name=NAMES[1])
    assert broken_code(story.tell(ev.ActivationsReceived(A, astray))) == "frame_shape"


def test_a_preempted_request_is_given_back_to_the_gateway() -> None:
    story = Story(1)
    story.open()
    reason = Reason(code="preempted", message="earlier ones need its slots")
    out = story.step(Outcome(0, 0, error=reason))
    (broken,) = to_gateway(out, Broken)
    assert (broken.code, broken.reason) == (StatusCode.ABORTED, reason)
    assert only(out, ef.ReleaseKv) == [ef.ReleaseKv(rid(), 1)]


def test_kv_is_filed_under_all_that_it_was_computed_from() -> None:
    middle = opened(1)
    paths = {cache_path(middle, SPEC), cache_path(opened(2), SPEC)}
    moved = replace(stages((A, B, C))[0], span=LayerSpan(0, 1))
    anew = replace(stages((A, B, C))[0], incarnation=2)
    for first in (moved, anew):
        changed = replace(middle, stages=(first, *middle.stages[1:]))
        paths.add(cache_path(changed, SPEC))
    assert len(paths) == 4
    for hops in (DType.FLOAT32, DType.INT8, DType.INT8), (DType.INT8,) * 3:
        paths.add(cache_path(replace(middle, hop_dtypes=hops), SPEC))
    assert len(paths) == 5, "what leaves changes nothing"
    later = replace(stages((A, B, C))[2], incarnation=9)
    same = replace(middle, stages=(*middle.stages[:2], later))
    assert cache_path(same, SPEC) == cache_path(middle, SPEC), "what comes behind changes nothing"


def test_names_differ_between_keys() -> None:
    mine, other = cache_salt("network", "a"), cache_salt("network", "b")
    assert BlockNamer(mine).push(range(16)) != BlockNamer(other).push(range(16))
    namer = BlockNamer(mine)
    pieces = (namer.push(range(10)), namer.push(range(10, 40)), namer.push(range(40, 48)))
    assert pieces[0] == ()
    assert pieces[1] + pieces[2] == BlockNamer(mine).push(range(48))
