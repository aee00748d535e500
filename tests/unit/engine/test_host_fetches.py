"""Works whose embedding rows have to be fetched first: they wait, and nobody waits with them."""

import asyncio
import threading

from plait.errors import OverloadedError, WeightsError
from plait.types import RequestId
from tests.unit.engine.test_host_faults import DEADLINE_S, Story, story


def fetched(told: Story, error: WeightsError | None = None) -> None:
    """The oldest fetch is over; it says so from a thread of its own."""
    thread = threading.Thread(target=told.runner.fetches.pop(0), args=(error,))
    thread.start()
    thread.join(DEADLINE_S)


async def test_a_work_waits_for_its_rows_and_others_go_on() -> None:
    async with story() as told:
        told.runner.let.release(100)
        told.open("far")
        told.open("near")
        told.runner.is_far = True
        told.submit("far", 0)
        told.runner.is_far = False
        told.submit("far", 1)  # must not overtake
        told.submit("near", 0)
        assert (await told.next()).request_id == "near"
        fetched(told)
        assert [(await told.next()).position for _ in range(2)] == [0, 1]
        assert told.runner.steps == [["near"], ["far"], ["far"]]


async def test_rows_that_cannot_be_had_fail_their_request_and_no_other() -> None:
    async with story() as told:
        told.runner.let.release(100)
        told.open("far")
        told.open("near")
        told.runner.is_far = True
        told.submit("far", 0)
        told.runner.is_far = False
        told.submit("far", 1)
        fetched(told, WeightsError("nobody answers", reason="weights_unavailable"))
        for position in range(2):
            lost = await told.next()
            assert lost.error is not None and lost.error.code == "weights_unavailable"
            assert lost.position == position
        told.submit("near", 0)
        assert (await told.next()).token_id == 7
        assert told.runner.steps == [["near"]]
        assert told.engine.stats().queue_tokens == 0


async def test_a_fetch_that_ends_after_its_sequence_is_nobodys() -> None:
    async with story() as told:
        told.runner.let.release(100)
        told.open("far")
        told.runner.is_far = True
        told.submit("far", 0)
        told.engine.close(RequestId("far"), 1)
        fetched(told, WeightsError("nobody answers", reason="weights_unavailable"))
        told.runner.is_far = False
        told.open("near")
        told.submit("near", 0)
        assert (await told.next()).request_id == "near"
        assert told.results.empty()


async def test_more_fetches_than_may_wait_are_refused() -> None:
    async with story() as told:
        told.runner.let.release(100)
        told.open("far")
        told.runner.refusal = OverloadedError("too many wait", reason="queue_full")
        told.submit("far", 0)
        refused = await told.next()
        assert refused.error is not None and refused.error.code == "queue_full"
        assert told.engine.stats().queue_tokens == 0


async def test_unloading_closes_what_was_held_and_answers_what_waits() -> None:
    async with story() as told:
        told.open("far")
        told.runner.is_far = True
        told.submit("far", 0)
        await asyncio.wait_for(told.engine.unload(), DEADLINE_S)
        lost = await told.next()
        assert lost.error is not None and lost.error.code == "span_unloaded"
        assert told.runner.is_closed
        fetched(told)  # late, and nobody's
