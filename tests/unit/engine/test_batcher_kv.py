"""Who has slots when they run short, and what of a prompt is there already."""

from dataclasses import replace

import pytest

from node.ports import StageWork
from plait.errors import FrameError
from plait.types import RequestId
from tests.unit.engine.test_batcher import has_work, make_batcher, opened, step, taken_names, work


def test_who_comes_later_gives_its_slots_to_who_was_first() -> None:
    batcher = make_batcher(step_tokens_max=64)
    for name in ("a", "b"):
        batcher.open(opened(name, kv_tokens=96))
    batcher.submit(work("a", 0, [1] * 47))
    batcher.submit(work("b", 0, [1] * 17))
    assert taken_names(batcher) == [("a", 0), ("b", 0)]
    batcher.submit(work("a", 47, [1] * 30))
    assert taken_names(batcher) == [("a", 47)]
    assert [s.opened.request_id for s in batcher.preempted()] == ["b"]


def test_who_comes_later_waits_while_there_is_no_room() -> None:
    batcher = make_batcher(step_tokens_max=64)
    for name in ("a", "b"):
        batcher.open(opened(name, kv_tokens=96))
    batcher.submit(work("a", 0, [1] * 64))
    assert taken_names(batcher) == [("a", 0)]
    batcher.submit(work("b", 0, [1] * 33))
    assert has_work(batcher) and taken_names(batcher) == []
    assert not has_work(batcher) and batcher.preempted() == []
    batcher.close(RequestId("a"), 1)
    assert has_work(batcher) and taken_names(batcher) == [("b", 0)]


def test_a_request_that_came_first_elsewhere_is_senior_here() -> None:
    batcher = make_batcher(step_tokens_max=64)
    batcher.open(replace(opened("young", kv_tokens=96), admission=2))
    batcher.submit(work("young", 0, [1] * 64))
    step(batcher)
    batcher.open(replace(opened("old", kv_tokens=96), admission=1))
    batcher.submit(work("old", 0, [1] * 64))
    assert taken_names(batcher) == [("old", 0)]
    assert [s.opened.request_id for s in batcher.preempted()] == ["young"]


def test_one_of_a_step_may_lose_its_place_to_another_of_it() -> None:
    batcher = make_batcher(step_tokens_max=64)
    batcher.open(opened("a", kv_tokens=96))
    batcher.open(opened("b", kv_tokens=96))
    batcher.submit(work("a", 0, [1] * 48))
    batcher.submit(work("b", 0, [1] * 16))
    step(batcher)
    batcher.submit(work("b", 16))
    batcher.submit(work("a", 48, [1] * 30))
    assert taken_names(batcher) == []
    assert [s.opened.request_id for s in batcher.preempted()] == ["b"]
    assert taken_names(batcher) == [("a", 48)]


def prefix(*blocks: int) -> tuple[bytes, ...]:
    return tuple(bytes([block]) * 16 for block in blocks)


def test_what_was_computed_is_found_under_its_name() -> None:
    batcher = make_batcher(step_tokens_max=64)
    names = prefix(1, 2, 3)
    first = replace(opened("a", kv_tokens=60), prefix=names, cached_blocks=3)
    assert batcher.open(first) == 0
    batcher.submit(work("a", 0, [1] * 40))
    step(batcher)  # the third block is not full
    second = replace(opened("b", kv_tokens=60), prefix=names, cached_blocks=3)
    assert batcher.open(second) == 32
    with pytest.raises(FrameError):
        batcher.submit(work("b", 0, [1]))
    batcher.submit(work("b", 32, [1] * 8))
    (item,) = step(batcher)
    assert item.runs[0][0] == 0 and batcher.kv_tokens_used == 64
    batcher.close(RequestId("a"), 1)
    batcher.close(RequestId("b"), 1)
    other_path = replace(first, request_id=RequestId("c"), cache_path=b"elsewhere")
    fewer = replace(first, request_id=RequestId("d"), cached_blocks=1)
    assert batcher.kv_tokens_used == 0
    assert (batcher.open(other_path), batcher.open(fewer)) == (0, 16)


def test_a_decoded_block_is_found_by_the_name_that_came_with_its_last_row() -> None:
    batcher = make_batcher(step_tokens_max=64)
    names = prefix(1, 2)
    batcher.open(replace(opened("a"), prefix=names[:1], cached_blocks=1))
    batcher.submit(work("a", 0, [1] * 31))
    last = StageWork(RequestId("a"), 1, 31, 1, token_ids=[1], block_name=names[1])
    batcher.submit(last)
    step(batcher)
    batcher.close(RequestId("a"), 1)
    assert batcher.open(replace(opened("b"), prefix=names, cached_blocks=2)) == 32


def test_what_failed_is_not_found() -> None:
    batcher = make_batcher(step_tokens_max=64)
    named = replace(opened("a"), prefix=prefix(1), cached_blocks=1)
    batcher.open(named)
    batcher.submit(work("a", 0, [1] * 20))
    batcher.finished(batcher.take(), [False])
    assert batcher.open(replace(named, request_id=RequestId("b"))) == 0


def test_a_rewound_sequence_runs_its_rows_again() -> None:
    batcher = make_batcher(step_tokens_max=32)
    names = prefix(1, 2)
    batcher.open(replace(opened("a"), prefix=names, cached_blocks=2))
    batcher.submit(work("a", 0, [1] * 40))
    step(batcher)
    batcher.close(RequestId("a"), 1)
    again = replace(opened("a", epoch=2), prefix=names, cached_blocks=2)
    assert batcher.open(again) == 32
    batcher.submit(work("a", 32, [1] * 8, epoch=2))
    items = batcher.take()
    batcher.rewind(RequestId("a"), 2, 16)
    assert not items[0].is_wanted
    assert batcher.submit(work("a", 16, [1] * 16, epoch=2))
    assert not batcher.has_work, "the step of before is under way"
    batcher.finished(items, [True])
    assert taken_names(batcher) == [("a", 16)]
    batcher.rewind(RequestId("a"), 1, 0)
    batcher.rewind(RequestId("never"), 1, 0)
    batcher.close(RequestId("a"), 2)
    assert batcher.kv_tokens_used == 0
