"""Queues, windows and back-off: everything has a bound, and tokens overtake prompts."""

import random

from node.backoff import Backoff
from node.core.messages import Activations, Close, LinkMessage, Token
from node.transport.flow import FlowLimits, Outbox, Window
from plait.types import FinishReason
from tests.unit.node.story import rid

LIMITS = FlowLimits()


def rows(size: int, *, request: str = "r1", position: int = 0, num_tokens: int = 1) -> Activations:
    return Activations(rid(request), 1, position, num_tokens, bytes(size), sample=False)


def close() -> LinkMessage:
    return Close(request_id=rid(), epoch=1, reason=FinishReason.STOP)


def drained(outbox: Outbox, window: Window | None = None) -> list[LinkMessage]:
    """Everything that goes through the window now."""
    window = window or Window(LIMITS)
    messages = []
    while (message := outbox.pop(window)) is not None:
        messages.append(message)
    return messages


async def test_the_queue_is_bounded_in_frames() -> None:
    outbox = Outbox(FlowLimits(queue_frames=2))
    assert [outbox.put(close()) for _ in range(3)] == [True, True, False]
    outbox.pop(Window(LIMITS))
    assert outbox.put(close())


async def test_the_queue_is_bounded_in_bytes() -> None:
    outbox = Outbox(FlowLimits(queue_bytes=100))
    assert outbox.put(rows(60))
    assert not outbox.put(rows(60))
    assert outbox.put(rows(40, num_tokens=2))
    assert outbox.put(close()), "what carries no rows always finds room"
    drained(outbox)
    assert outbox.queued_bytes == 0


async def test_decode_rows_and_tokens_overtake_the_prefill_of_others() -> None:
    outbox = Outbox(LIMITS)
    prefill = [rows(8, request="long", position=p, num_tokens=4) for p in (0, 4)]
    decode, token = rows(2), Token(rid("r2"), 1, 5, 9)
    for chunk in prefill:
        outbox.put(chunk)
    outbox.put(decode)
    outbox.put(token)
    assert drained(outbox) == [decode, token, *prefill]


async def test_guesses_are_no_prompt() -> None:
    outbox = Outbox(LIMITS)
    prompt = rows(8, request="long", num_tokens=4)
    guessed = Activations(rid(), 1, 4, 3, bytes(6), sample=True, drafted_ids=(7, 8))
    outbox.put(prompt)
    outbox.put(guessed)
    assert drained(outbox) == [guessed, prompt]


async def test_a_last_chunk_of_one_row_stays_behind_its_own_prompt() -> None:
    outbox = Outbox(LIMITS)
    prompt = [
        rows(8, request="long", position=0, num_tokens=4),
        rows(2, request="long", position=4, num_tokens=1),
    ]
    for message in prompt:
        outbox.put(message)
    assert drained(outbox) == prompt
    decode = rows(2, request="long", position=5)
    outbox.put(rows(8, request="other", num_tokens=4))
    outbox.put(decode)
    assert drained(outbox)[0] is decode, "once its prompt is sent, it is quick again"


async def test_prefill_takes_part_of_the_window_only() -> None:
    limits = FlowLimits(window_frames=64, bulk_window_bytes=100)
    outbox, window = Outbox(limits), Window(limits)
    for position in range(0, 40, 4):
        outbox.put(rows(40, request="long", position=position, num_tokens=4))
    assert len(drained(outbox, window)) == 2
    decode = rows(40)
    outbox.put(decode)
    assert drained(outbox, window) == [decode]
    window.credited(3)
    assert len(drained(outbox, window)) == 2


async def test_a_chunk_larger_than_the_window_goes_alone() -> None:
    limits = FlowLimits(bulk_window_bytes=10)
    outbox, window = Outbox(limits), Window(limits)
    outbox.put(rows(40, num_tokens=4))
    outbox.put(rows(40, position=4, num_tokens=4))
    assert len(drained(outbox, window)) == 1


async def test_small_chunks_leave_half_of_the_frames_to_decodes() -> None:
    limits = FlowLimits(window_frames=4)
    outbox, window = Outbox(limits), Window(limits)
    for position in range(0, 20, 2):
        outbox.put(rows(2, request="long", position=position, num_tokens=2))
    assert len(drained(outbox, window)) == 3
    outbox.put(rows(2))
    assert len(drained(outbox, window)) == 1


async def test_uncredited_decodes_never_hold_a_chunk_back() -> None:
    """They are credited in batches; a chunk that waited for one would wait for ever."""
    limits = FlowLimits(bulk_window_bytes=100)
    outbox, window = Outbox(limits), Window(limits)
    outbox.put(rows(50))
    outbox.put(rows(60, request="short", num_tokens=1))
    assert len(drained(outbox, window)) == 2
    outbox.put(rows(200, request="long", num_tokens=4))
    assert len(drained(outbox, window)) == 1


def test_a_window_closes_and_opens_with_credit() -> None:
    window = Window(FlowLimits(window_frames=2))
    window.sent()
    window.sent()
    assert (window.is_open, window.in_flight) == (False, 2)
    window.credited(1)
    assert (window.is_open, window.in_flight) == (True, 1)


def test_credit_for_more_than_was_sent_buys_nothing() -> None:
    window = Window(FlowLimits(window_frames=2))
    window.credited(1_000)
    window.sent()
    window.sent()
    assert not window.is_open


def test_credit_is_given_in_batches_and_at_once_for_a_chunk() -> None:
    window = Window(FlowLimits(credit_batch_frames=3))
    assert [window.took() for _ in range(3)] == [False, False, True]
    assert (window.collect(), window.collect()) == (3, 0)
    assert window.took(is_bulk=True)
    assert window.collect() == 1


def test_back_off_is_jittered_and_bounded() -> None:
    backoff = Backoff(random.Random(1), first_s=1.0, max_s=8.0)
    waits = [backoff.next_s() for _ in range(200)]
    assert all(0.05 <= wait <= 8.0 for wait in waits)
    assert waits[0] <= 1.0
    assert len(set(waits)) > 100
    backoff.reset()
    assert backoff.next_s() <= 1.0
