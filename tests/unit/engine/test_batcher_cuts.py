"""Works are cut where a step ends, and joined where they wait."""

from node.ports import StageWork
from plait.types import LayerSpan, RequestId
from tests.unit.engine.test_batcher import make_batcher, opened, step, taken_names, work


def test_works_that_wait_are_run_together_up_to_one_that_is_sampled() -> None:
    batcher = make_batcher()
    batcher.open(opened(span=LayerSpan(1, 2)))
    for position in range(0, 6, 2):
        rows = bytes([position]) * (2 * 48 * 4)
        batcher.submit(StageWork(RequestId("a"), 1, position, 2, hidden=rows, sample=position == 2))
    (first,), (second,) = step(batcher), step(batcher)
    assert (first.work.position, first.work.num_tokens, first.work.sample) == (0, 4, True)
    assert first.work.hidden == bytes([0]) * (2 * 48 * 4) + bytes([2]) * (2 * 48 * 4)
    assert (second.work.position, second.work.num_tokens) == (4, 2)


def test_only_the_last_part_of_a_prompt_is_sampled() -> None:
    batcher = make_batcher()
    batcher.open(opened())
    ids = list(range(11))
    batcher.submit(StageWork(RequestId("a"), 1, 0, 11, token_ids=ids, sample=True))
    (first,), (second,) = step(batcher), step(batcher)
    assert (first.work.token_ids, first.work.sample) == (ids[:8], False)
    assert (second.work.token_ids, second.work.sample) == (ids[8:], True)


def test_a_prompt_takes_no_more_rows_than_it_is_told() -> None:
    batcher = make_batcher()
    for name in ("a", "b"):
        batcher.open(opened(name, kv_tokens=30))
    batcher.submit(work("a", 0, [1] * 6))
    batcher.submit(work("b", 0, [1]))
    assert taken_names(batcher, 0) == [("b", 0)]
    batcher.submit(work("b", 1, [1]))
    assert taken_names(batcher, 4) == [("b", 1), ("a", 0)]
    assert taken_names(batcher, 4) == [("a", 4)]
