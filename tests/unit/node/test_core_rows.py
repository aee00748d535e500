"""Rows and tokens of a request on a stage, as stories."""

import pytest

from node.core import effects as ef
from node.core import events as ev
from node.core.messages import (
    ROWS_INVALID,
    Activations,
    Broken,
    Close,
    Opened,
    StatusCode,
    Token,
)
from node.core.state import Limits
from plait.types import DType, FinishReason, Reason
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
    to_gateway,
)


def test_rows_go_to_the_engine_and_its_rows_to_the_next_stage() -> None:
    story = Story(1)
    story.open()
    (work,) = only(story.rows(0, 4, sample=True), ef.SubmitRows)
    assert (work.position, work.num_tokens, work.hidden, work.sample) == (0, 4, ROW * 4, True)
    ((neighbour, rows),) = sent(story.step(Outcome(0, 4, hidden=b"h", sample=True)), Activations)
    assert (neighbour, rows.position, rows.num_tokens, rows.payload) == (C, 0, 4, b"h")
    assert rows.sample


def test_a_duplicate_is_dropped_and_counted() -> None:
    story = Story(1)
    story.open()
    story.rows(0, 4)
    assert story.rows(0, 4) == []
    assert story.rows(3) == []
    assert story.core.counters.frames_duplicate == 2
    assert only(story.rows(4), ef.SubmitRows)


@pytest.mark.parametrize(
    ("kwargs", "word"),
    [
        ({"position": 5}, "frame_gap"),
        ({"position": 4, "payload": ROW[:-1]}, "frame_shape"),
        ({"position": 4, "payload": b""}, "frame_shape"),
        ({"position": 4, "num_tokens": 0, "payload": b""}, "frame_shape"),
        ({"position": 4, "dtype": DType.FLOAT16}, "frame_dtype"),
        ({"position": 4, "num_tokens": 61}, "frame_position"),
    ],
)
def test_rows_that_contradict_the_request_end_it_and_no_other(
    kwargs: dict[str, object], word: str
) -> None:
    story = Story(1)
    story.open()
    story.open(request="r2")
    story.rows(0, 4)
    effects = story.rows(**kwargs)  # type: ignore[arg-type]
    assert broken_code(effects) == word
    (broken,) = to_gateway(effects, Broken)
    assert (broken.code, broken.node_id) == (StatusCode.INVALID_ARGUMENT, A)
    assert [n for n, _ in sent(effects, Broken)] == [A]
    assert [n for n, _ in sent(effects, Close)] == [C]
    assert only(effects, ef.ReleaseKv) == [ef.ReleaseKv(rid(), 1)]
    assert only(story.rows(0, 4, request="r2"), ef.SubmitRows)


def test_rows_before_the_kv_is_there_end_the_request() -> None:
    story = Story(1)
    story.tell(ev.OpenReceived(A, opened(1)))
    assert broken_code(story.rows(0, 4)) == "frame_early"


def test_rows_from_another_neighbour_are_foreign_and_change_nothing() -> None:
    story = Story(1)
    story.open()
    assert story.rows(0, 4, sender=C) == []
    assert story.rows(0, 4, request="never") == []
    assert story.core.counters.frames_foreign == 2
    assert only(story.rows(0, 4), ef.SubmitRows)


def test_an_unreadable_frame_costs_its_own_request_only() -> None:
    story = Story(1)
    story.open()
    story.open(request="r2")
    reason = Reason(code="dtype_unknown", message="...")
    strange = ev.FrameRejected(sender=C, request_id=rid(), epoch=1, reason=reason)
    assert story.tell(strange) == []
    nameless = ev.FrameRejected(sender=A, request_id=None, epoch=0, reason=reason)
    assert story.tell(nameless) == []
    own = ev.FrameRejected(sender=A, request_id=rid(), epoch=1, reason=reason)
    assert broken_code(story.tell(own)) == "dtype_unknown"
    assert story.core.counters.frames_malformed == 3
    assert story.core.num_sessions == 1


def test_an_engine_error_breaks_the_request_and_blames_this_node() -> None:
    story = Story(1)
    story.open()
    story.rows(0, 4)
    effects = story.step(Outcome(0, 4, error=Reason(code="nan", message="...")))
    (broken,) = to_gateway(effects, Broken)
    assert (broken.code, broken.node_id, broken.stage_index) == (StatusCode.INTERNAL, B, 1)


def test_rows_that_the_engine_cannot_read_are_the_senders_fault() -> None:
    story = Story(1)
    story.open()
    story.rows(0, 4)
    effects = story.step(Outcome(0, 4, error=Reason(code=ROWS_INVALID, message="NaN")))
    (broken,) = to_gateway(effects, Broken)
    assert (broken.code, broken.node_id) == (StatusCode.INVALID_ARGUMENT, A)
    assert story.core.counters.frames_malformed == 1


def test_each_hop_has_the_dtype_that_the_ticket_names() -> None:
    story = Story(1)
    hops = (DType.INT8, DType.FLOAT16, DType.FLOAT32)
    story.open(hops=hops)
    size = DType.INT8.row_bytes(SPEC.hidden_size)
    (work,) = only(story.rows(0, 4, payload=bytes(4 * size)), ef.SubmitRows)
    assert work.dtype is DType.INT8
    assert broken_code(story.rows(4, payload=bytes(size + 1))) == "frame_shape"


def test_chunks_of_a_prompt_fit_the_widest_hop_of_the_chain() -> None:
    limits = Limits(prefill_chunk_tokens=64)
    size = DType.FLOAT32.row_bytes(SPEC.hidden_size)
    story = Story(0, limits=limits)
    frame_bytes_max = limits.frame_overhead_bytes + 3 * size
    story.tell(ev.ControlAttached(models=(), frame_bytes_max=frame_bytes_max))
    hops = (DType.INT8, DType.FLOAT32, DType.FLOAT32)
    chunks = only(story.open(hops=hops), ef.SubmitRows)
    assert [chunk.num_tokens for chunk in chunks] == [3, 1]


def test_chunks_that_ran_as_one_leave_in_frames_of_the_networks_size() -> None:
    story = Story(1, limits=Limits(prefill_chunk_tokens=3))
    story.open()
    story.rows(0, 3, sample=False)
    story.rows(3, 3, sample=False)
    story.rows(6, 2)
    hidden = bytes(range(8 * 4))
    frames = [
        rows for _, rows in sent(story.step(Outcome(0, 8, hidden=hidden, sample=True)), Activations)
    ]
    assert [(r.position, r.num_tokens, r.sample) for r in frames] == [
        (0, 3, False),
        (3, 3, False),
        (6, 2, True),
    ]
    assert b"".join(rows.payload for rows in frames) == hidden


def test_frames_of_wide_rows_hold_fewer_of_them() -> None:
    limits = Limits(prefill_chunk_tokens=64)
    story = Story(1, limits=limits)
    size = DType.FLOAT32.row_bytes(SPEC.hidden_size)
    frame_bytes_max = limits.frame_overhead_bytes + 2 * size
    story.tell(ev.ControlAttached(models=(), frame_bytes_max=frame_bytes_max))
    story.open()
    story.rows(0, 4)
    effects = story.step(Outcome(0, 4, hidden=ROW * 4, sample=True))
    assert [rows.num_tokens for _, rows in sent(effects, Activations)] == [2, 2]


def test_a_step_without_rows_is_the_engines_failure() -> None:
    story = Story(1)
    story.open()
    story.rows(0, 4)
    assert broken_code(story.step(Outcome(0, 4))) == "engine_failed"


def test_results_of_an_ended_request_are_nobodys() -> None:
    story = Story(1)
    story.open()
    story.close(sender=A)
    assert story.step(Outcome(0, 4, hidden=b"h")) == []


def drawn(story: Story, position: int, token_id: int = 7) -> list[ef.Effect]:
    return story.step(Outcome(position - 1, 1, token_id=token_id, sample=True))


def test_the_last_stage_tells_gateway_and_first_stage() -> None:
    story = Story(2)
    story.open()
    story.rows(0, 4)
    effects = story.step(Outcome(0, 4, token_id=7, sample=True))
    (up,) = to_gateway(effects, Token)
    ((neighbour, ring),) = sent(effects, Token)
    assert (up.position, up.token_id, up.finish_reason) == (4, 7, None)
    assert (neighbour, ring.position, ring.token_id) == (A, 4, 7)
    kinds = [type(effect) for effect in effects]
    assert kinds.index(ef.Send) < kinds.index(ef.SendToGateway), "a step waits for the ring's"


def test_a_prefill_chunk_that_is_not_the_last_draws_nothing() -> None:
    story = Story(2)
    story.open()
    story.rows(0, 2, sample=False)
    assert story.step(Outcome(0, 2)) == []


@pytest.mark.parametrize(
    ("kwargs", "finish"),
    [
        ({"stop": (7,)}, FinishReason.STOP),
        ({"max_new_tokens": 1}, FinishReason.LENGTH),
        ({"kv_tokens": 4}, FinishReason.LENGTH),
        ({"stop": (8,)}, None),
    ],
)
def test_the_last_stage_decides_the_end(
    kwargs: dict[str, object], finish: FinishReason | None
) -> None:
    story = Story(2)
    story.open(**kwargs)
    story.rows(0, 4)
    effects = story.step(Outcome(0, 4, token_id=7, sample=True))
    (up,) = to_gateway(effects, Token)
    ((_, ring),) = sent(effects, Token)
    assert up.finish_reason == ring.finish_reason == finish
    assert bool(only(effects, ef.ReleaseKv)) == (finish is not None)


def test_a_route_of_one_stage_goes_round_by_itself() -> None:
    story = Story(0, (A,))
    effects = story.open(max_new_tokens=2)
    assert to_gateway(effects, Opened)
    effects = story.step(Outcome(0, 4, token_id=7, sample=True))
    (work,) = only(effects, ef.SubmitRows)
    assert (work.position, tuple(work.token_ids or ()), work.sample) == (4, (7,), True)
    assert only(effects, ef.Send) == []
    effects = drawn(story, 5)
    assert to_gateway(effects, Token)[0].finish_reason is FinishReason.LENGTH
    assert story.core.num_sessions == 0


def test_a_ring_token_is_the_first_stages_next_row() -> None:
    story = Story(0)
    story.open()
    (work,) = only(story.ring_token(4, 9), ef.SubmitRows)
    assert (work.position, tuple(work.token_ids or ()), work.sample) == (4, (9,), True)
    assert story.ring_token(4, 9) == []
    assert story.core.counters.frames_duplicate == 1


@pytest.mark.parametrize(
    ("position", "token_id", "word"),
    [(6, 9, "frame_gap"), (5, 1000, "token_id_invalid")],
)
def test_a_ring_token_that_cannot_be_ends_the_request(
    position: int, token_id: int, word: str
) -> None:
    story = Story(0)
    story.open()
    story.ring_token(4)
    assert broken_code(story.ring_token(position, token_id)) == word


def test_a_ring_token_beyond_the_slots_ends_the_request() -> None:
    story = Story(0)
    story.open(kv_tokens=4)
    assert broken_code(story.ring_token(4)) == "frame_position"


def test_a_ring_token_counts_from_the_last_stage_only() -> None:
    story = Story(0)
    story.open()
    assert story.ring_token(4, sender=B) == []
    middle = Story(1)
    middle.open()
    assert middle.ring_token(4) == []
    assert story.core.counters.frames_foreign == middle.core.counters.frames_foreign == 1


def test_the_last_token_frees_the_chain_from_its_first_stage() -> None:
    story = Story(0)
    story.open()
    effects = story.ring_token(4, finish=FinishReason.STOP)
    assert [(n, c.reason) for n, c in sent(effects, Close)] == [(B, FinishReason.STOP)]
    assert only(effects, ef.ReleaseKv) == [ef.ReleaseKv(rid(), 1)]
