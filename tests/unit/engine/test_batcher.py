"""Admission and order: what is open, what waits, what goes into a step."""

from collections.abc import Sequence as Rows

import pytest

from node.engine.batcher import Batcher
from node.engine.sequence import StepItem
from node.ports import SequenceOpen, StageWork
from plait.errors import FrameError, OverloadedError, UnavailableError
from plait.types import DType, HeldSpan, LayerSpan, ModelId, RequestId, SamplingParams
from tests.unit.engine.kit import tiny_model

SPEC = tiny_model("llama").spec
HELD = HeldSpan(
    model_id=ModelId("tiny"),
    span=LayerSpan(0, 3),
    allocation_epoch=1,
    digest="",
    weight_bytes=0,
    read_bytes=0,
    kv_tokens_max=100,
)


def make_batcher(*, step_tokens_max: int = 8, queue_tokens_max: int = 64) -> Batcher:
    batcher = Batcher(step_tokens_max=step_tokens_max, queue_tokens_max=queue_tokens_max)
    batcher.hold(SPEC, HELD)
    return batcher


def opened(
    name: str = "a",
    *,
    epoch: int = 1,
    kv_tokens: int = 40,
    span: LayerSpan = HELD.span,
    sampling: SamplingParams | None = None,
    penalty_ids: tuple[int, ...] = (),
) -> SequenceOpen:
    return SequenceOpen(
        request_id=RequestId(name),
        epoch=epoch,
        span=span,
        kv_tokens=kv_tokens,
        wire_dtype=DType.FLOAT32,
        sampling=sampling or SamplingParams(),
        penalty_prompt_ids=penalty_ids,
    )


def work(name: str = "a", position: int = 0, ids: Rows[int] = (1,), *, epoch: int = 1) -> StageWork:
    return StageWork(RequestId(name), epoch, position, len(ids), token_ids=ids)


def has_work(batcher: Batcher) -> bool:
    return batcher.has_work


def step(batcher: Batcher, prompt_rows_max: int | None = None) -> list[StepItem]:
    """A step that is taken and over."""
    items = batcher.take(prompt_rows_max)
    batcher.finished(items, [True] * len(items))
    batcher.check()
    return items


def taken_names(batcher: Batcher, prompt_rows_max: int | None = None) -> list[tuple[str, int]]:
    items = step(batcher, prompt_rows_max)
    return [(item.work.request_id, item.work.position) for item in items]


def test_slots_come_with_rows_and_are_given_back() -> None:
    batcher = make_batcher()
    batcher.open(opened("a", kv_tokens=60))
    batcher.open(opened("b", kv_tokens=60))
    assert batcher.kv_tokens_used == 0
    for name in ("a", "b"):
        batcher.submit(work(name, ids=[1] * 3))
    step(batcher)
    assert (batcher.kv_tokens_used, batcher.num_sequences) == (32, 2)
    for name, epoch in (("a", 1), ("a", 1), ("never", 9), ("b", 1)):
        batcher.close(RequestId(name), epoch)
    assert (batcher.kv_tokens_used, batcher.num_sequences) == (0, 0)


def test_what_can_never_have_its_slots_is_refused() -> None:
    with pytest.raises(OverloadedError) as refused:
        make_batcher().open(opened(kv_tokens=97))
    assert refused.value.code == "kv_full"


def test_a_newer_epoch_takes_the_place_of_an_older_one() -> None:
    batcher = make_batcher()
    batcher.open(opened(kv_tokens=80))
    batcher.submit(work(ids=[1, 2, 3]))
    items = batcher.take()
    batcher.submit(work(position=3))
    batcher.open(opened(epoch=2, kv_tokens=90))
    assert batcher.kv_tokens_used == 16, "the step that is under way still writes"
    assert batcher.queue_tokens == 0 and not items[0].is_wanted
    batcher.finished(items, [True])
    assert batcher.kv_tokens_used == 0
    assert not batcher.submit(work(position=4))  # the old epoch's frame comes late
    assert batcher.submit(work(epoch=2))
    assert [item.work.epoch for item in step(batcher)] == [2]
    batcher.close(RequestId("a"), 1)
    assert batcher.num_sequences == 1
    batcher.close(RequestId("a"), 3)
    assert batcher.num_sequences == 0


def test_sequences_that_come_and_go_without_work_leave_nothing_behind() -> None:
    batcher = make_batcher()
    for epoch in range(1, 50):
        batcher.open(opened(epoch=epoch))
    batcher.close(RequestId("a"), 50)
    assert step(batcher) == []
    assert batcher.kv_tokens_used == 0


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_old_epoch_is_refused(epoch: int) -> None:
    batcher = make_batcher()
    batcher.open(opened(epoch=2))
    with pytest.raises(FrameError):
        batcher.open(opened(epoch=epoch))
    assert batcher.num_sequences == 1


@pytest.mark.parametrize("kv_tokens", [0, -5, 129])
def test_impossible_reservations_are_refused(kv_tokens: int) -> None:
    with pytest.raises(FrameError):
        make_batcher().open(opened(kv_tokens=kv_tokens))


def test_a_span_that_is_not_held_is_refused() -> None:
    with pytest.raises(UnavailableError) as refused:
        Batcher(step_tokens_max=8, queue_tokens_max=8).open(opened())
    assert refused.value.code == "span_not_held"
    with pytest.raises(UnavailableError):
        make_batcher().open(opened(span=LayerSpan(2, 4)))


def test_penalty_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(FrameError):
        make_batcher().open(opened(penalty_ids=(5, 97)))


def test_a_step_takes_one_work_of_a_sequence_in_order() -> None:
    batcher = make_batcher()
    for name in ("a", "b"):
        batcher.open(opened(name))
    batcher.submit(StageWork(RequestId("a"), 1, 0, 2, token_ids=[1, 2], sample=True))
    batcher.submit(work("a", 2, [3]))
    batcher.submit(work("b", 0, [4]))
    batcher.submit(work("a", 3, [5]))
    assert taken_names(batcher) == [("b", 0), ("a", 0)]
    assert taken_names(batcher) == [("a", 2)]
    assert taken_names(batcher) == [("a", 3)]
    assert batcher.queue_tokens == 0 and not batcher.has_work


def test_a_step_stays_within_its_rows_and_starves_nobody() -> None:
    batcher = make_batcher()
    for name in ("a", "b", "c"):
        batcher.open(opened(name, kv_tokens=30))
    batcher.submit(work("a", 0, [1] * 5))
    batcher.submit(work("b", 0, [1] * 20))  # more than a step holds
    batcher.submit(work("c", 0, [1] * 3))
    taken = [
        [(i.work.request_id, i.work.position, i.work.num_tokens) for i in step(batcher)]
        for _ in range(4)
    ]
    assert taken == [
        [("a", 0, 5), ("b", 0, 3)],
        [("b", 3, 8)],
        [("b", 11, 8)],
        [("b", 19, 1), ("c", 0, 3)],
    ]
    assert not batcher.has_work and batcher.queue_tokens == 0


def test_decodes_wait_for_nobodys_prompt() -> None:
    batcher = make_batcher()
    for name in ("a", "b", "c"):
        batcher.open(opened(name, kv_tokens=30))
    batcher.submit(work("a", 0, [1] * 8))
    batcher.submit(work("a", 8, [1] * 8))
    batcher.submit(work("b", 0, [1]))
    batcher.submit(work("c", 0, [1]))
    assert taken_names(batcher) == [("b", 0), ("c", 0), ("a", 0)]
    batcher.submit(work("b", 1, [1]))
    assert taken_names(batcher) == [("b", 1), ("a", 8)]
    assert batcher.queue_tokens == 0


def test_more_is_expected_while_a_sequence_has_nothing_queued() -> None:
    batcher = make_batcher()
    batcher.open(opened("a", kv_tokens=30))
    batcher.open(opened("b", kv_tokens=30))
    batcher.submit(work("a"))
    batcher.submit(work("a", 1))
    assert batcher.expects_more()
    batcher.submit(work("b"))
    assert not batcher.expects_more()
    step(batcher)
    batcher.close(RequestId("b"), 1)
    assert not batcher.expects_more()


def test_those_who_shared_a_step_are_expected_together() -> None:
    batcher = make_batcher()
    for name in ("a", "b", "c"):
        batcher.open(opened(name, kv_tokens=30))
        batcher.submit(work(name))
    step(batcher)
    assert not batcher.expects_companions()  # nobody is ready: nothing to wait with
    batcher.submit(work("a", 1))
    assert batcher.expects_companions()
    batcher.submit(work("b", 1))
    batcher.close(RequestId("c"), 1)
    assert not batcher.expects_companions()
    step(batcher)
    batcher.submit(work("a", 2))
    step(batcher)  # b did not come in time
    batcher.submit(work("a", 3))
    assert not batcher.expects_companions()
    batcher.submit(work("b", 2))
    assert not batcher.expects_companions()


def test_large_groups_may_part() -> None:
    batcher = Batcher(step_tokens_max=8, queue_tokens_max=64, companions_max=2)
    batcher.hold(SPEC, HELD)
    for name in ("a", "b", "c"):
        batcher.open(opened(name, kv_tokens=30))
        batcher.submit(work(name))
    step(batcher)
    batcher.submit(work("a", 1))
    assert not batcher.expects_companions()


def test_a_prompts_next_chunk_counts_as_ready() -> None:
    batcher = make_batcher()
    for name in ("a", "b"):
        batcher.open(opened(name, kv_tokens=30))
    batcher.submit(StageWork(RequestId("a"), 1, 0, 2, token_ids=[1, 2], sample=True))
    batcher.submit(work("a", 2, [1, 2]))
    batcher.submit(work("b"))
    step(batcher)
    assert batcher.expects_companions() and batcher.expects_more()
    batcher.submit(work("b", 1))
    assert not batcher.expects_companions() and not batcher.expects_more()
    batcher.close(RequestId("a"), 1)
    assert not batcher.expects_companions() and not batcher.expects_more()
    assert taken_names(batcher) == [("b", 1)]


def test_the_queue_is_bounded() -> None:
    batcher = make_batcher(queue_tokens_max=10)
    batcher.open(opened(kv_tokens=50))
    batcher.submit(work(ids=[1] * 6))
    with pytest.raises(OverloadedError) as refused:
        batcher.submit(work(position=6, ids=[1] * 5))
    assert refused.value.code == "queue_full" and batcher.queue_tokens == 6
    assert batcher.submit(work(position=6, ids=[1] * 4))


@pytest.mark.parametrize(
    "bad",
    [
        work(position=1),
        work(position=-1),
        work(ids=[]),
        work(ids=[1] * 41),
        work(ids=[97]),
        work(ids=[-1]),
        StageWork(RequestId("a"), 1, 0, 2, token_ids=[1]),
        StageWork(RequestId("a"), 1, 0, 1, hidden=bytes(48 * 4)),
    ],
)
def test_works_that_do_not_fit_are_refused(bad: StageWork) -> None:
    batcher = make_batcher()
    batcher.open(opened())
    with pytest.raises(FrameError):
        batcher.submit(bad)
    assert not batcher.has_work and batcher.submit(work())


@pytest.mark.parametrize(
    ("hidden", "dtype", "fits"),
    [
        (bytes(2 * 48 * 4), DType.FLOAT32, True),
        (bytes(2 * 48 * 2), DType.BFLOAT16, True),
        (bytes(2 * 48 * 4), DType.FLOAT16, False),
        (bytes(2 * 48 * 4 - 1), DType.FLOAT32, False),
        (None, DType.FLOAT32, False),
    ],
)
def test_hidden_states_have_the_models_width(
    hidden: bytes | None, dtype: DType, fits: bool
) -> None:
    batcher = make_batcher()
    batcher.open(opened(span=LayerSpan(1, 2)))
    arrived = StageWork(RequestId("a"), 1, 0, 2, hidden=hidden, dtype=dtype)
    if fits:
        assert batcher.submit(arrived)
    else:
        with pytest.raises(FrameError):
            batcher.submit(arrived)


def test_a_position_may_not_come_twice() -> None:
    batcher = make_batcher()
    batcher.open(opened())
    batcher.submit(work(ids=[1, 2]))
    step(batcher)
    with pytest.raises(FrameError):
        batcher.submit(work(ids=[1, 2]))
    assert batcher.submit(work(position=2))


def test_dropping_returns_what_waits() -> None:
    batcher = make_batcher()
    batcher.open(opened())
    batcher.submit(work())
    assert [w.request_id for w in batcher.drop()] == ["a"]
    assert not batcher.has_work and batcher.kv_tokens_used == 0
    assert not batcher.submit(work(position=1))


def test_a_work_set_aside_holds_back_its_sequence_and_nobody_else() -> None:
    batcher = make_batcher()
    batcher.open(opened("a"))
    batcher.open(opened("b"))
    first = work("a", 0, (1, 2))
    batcher.submit(first)
    batcher.set_aside(first)
    batcher.submit(work("a", 2))
    assert not has_work(batcher)
    assert taken_names(batcher) == []
    batcher.submit(work("b", 0))
    assert has_work(batcher)
    assert taken_names(batcher) == [("b", 0)]
    assert batcher.queue_tokens == 3 and not has_work(batcher)
    batcher.resume(first)
    assert has_work(batcher)
    (item,) = step(batcher)
    assert (item.work.position, item.work.num_tokens) == (0, 3)
    assert batcher.queue_tokens == 0 and not has_work(batcher)


def test_an_abandoned_work_takes_its_sequences_later_ones_along() -> None:
    batcher = make_batcher()
    batcher.open(opened("a"))
    batcher.open(opened("b"))
    works = [work("a", 0, (1, 2)), work("a", 2)]
    for queued in works:
        batcher.submit(queued)
    batcher.set_aside(works[0])
    batcher.submit(work("b", 0))
    assert batcher.abandon(works[0]) == works
    assert batcher.abandon(works[0]) == []
    assert batcher.queue_tokens == 1
    assert taken_names(batcher) == [("b", 0)]
    assert batcher.expects_more()  # neither has anything queued now
    batcher.close(RequestId("a"), 1)
    batcher.resume(works[0])
    assert batcher.num_sequences == 1 and not has_work(batcher)


def test_closing_forgets_what_was_set_aside() -> None:
    batcher = make_batcher()
    batcher.open(opened("a"))
    waiting = work("a", 0)
    batcher.submit(waiting)
    batcher.set_aside(waiting)
    batcher.close(RequestId("a"), 1)
    assert batcher.abandon(waiting) == [] and batcher.queue_tokens == 0


def test_a_step_takes_no_more_decodes_than_it_should_the_longest_waiting_first() -> None:
    batcher = make_batcher()
    for name in "abc":
        batcher.open(opened(name, kv_tokens=20))
        batcher.submit(work(name))
        batcher.finished(batcher.take(), [True])
    for name in "bac":
        batcher.submit(work(name, 1))
    first = batcher.take(decodes_max=1)
    batcher.submit(work("b", 2))
    batcher.finished(first, [True])
    second = batcher.take(decodes_max=2)
    assert [[i.work.request_id for i in items] for items in (first, second)] == [["b"], ["a", "c"]]
