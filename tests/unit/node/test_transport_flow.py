"""Queues, windows and back-off: everything has a bound."""

import random

from node.backoff import Backoff
from node.core.messages import Activations, Close, LinkMessage
from node.transport.flow import FlowLimits, Outbox, Window
from plait.types import FinishReason
from tests.unit.node.story import rid


def rows(size: int) -> Activations:
    return Activations(rid(), 1, 0, 1, bytes(size), sample=False)


def close() -> LinkMessage:
    return Close(request_id=rid(), epoch=1, reason=FinishReason.STOP)


async def test_the_queue_is_bounded_in_frames() -> None:
    outbox = Outbox(FlowLimits(queue_frames=2))
    assert [outbox.put(close()) for _ in range(3)] == [True, True, False]
    outbox.pop()
    assert outbox.put(close())


async def test_the_queue_is_bounded_in_bytes() -> None:
    outbox = Outbox(FlowLimits(queue_bytes=100))
    assert outbox.put(rows(60))
    assert not outbox.put(rows(60))
    assert outbox.put(rows(40))
    assert outbox.put(close()), "what carries no rows always finds room"
    outbox.pop()
    assert outbox.queued_bytes == 40


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


def test_credit_is_given_in_batches() -> None:
    window = Window(FlowLimits(credit_batch_frames=3))
    assert [window.took() for _ in range(3)] == [False, False, True]
    assert window.collect() == 3
    assert window.collect() == 0


def test_back_off_is_jittered_and_bounded() -> None:
    backoff = Backoff(random.Random(1), first_s=1.0, max_s=8.0)
    waits = [backoff.next_s() for _ in range(200)]
    assert all(0.05 <= wait <= 8.0 for wait in waits)
    assert max(waits[:1]) <= 1.0
    assert len(set(waits)) > 100
    backoff.reset()
    assert backoff.next_s() <= 1.0
