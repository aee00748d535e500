"""A node that leaves ends all its parts, even one whose cancellation got lost."""

import asyncio

from node.main import end


async def test_a_task_that_lost_a_cancellation_is_cancelled_again() -> None:
    num_lost = 0

    async def forgetful() -> None:
        nonlocal num_lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                num_lost += 1
                if num_lost == 3:
                    raise

    async def obedient() -> None:
        await asyncio.Event().wait()

    tasks = [asyncio.create_task(forgetful()), asyncio.create_task(obedient())]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await end(tasks, patience_s=0.01)
    assert all(task.cancelled() for task in tasks)
    assert num_lost == 3
