"""The solver's process: it answers, and it may crash, hang, lie or be killed without harm."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.shell.solve import Solver
from tests.kit.inbox import ListInbox
from tests.kit.wait import until
from tests.unit.shell.fakes import ALLOCATION, PROBLEM

PRELUDE = """
import dataclasses, pickle, sys, os, time
def read():
    n = int.from_bytes(sys.stdin.buffer.read(8), 'big')
    return pickle.loads(sys.stdin.buffer.read(n)) if n else sys.exit(0)
def answer(x):
    p = pickle.dumps(x)
    sys.stdout.buffer.write(len(p).to_bytes(8, 'big') + p)
    sys.stdout.buffer.flush()
from tests.kit.inbox import ListInbox
from tests.unit.shell.fakes import ALLOCATION
"""
ANSWERS = PRELUDE + "while True: read(); answer((ALLOCATION, ()))"
CRASHES = PRELUDE + "read(); os._exit(7)"
IS_FRAIL = (
    PRELUDE
    + """
while True:
    problem, trouble = read()
    if trouble is None: os._exit(7)
    answer((dataclasses.replace(ALLOCATION, warnings=(trouble,)), ()))
"""
)
HANGS = PRELUDE + "read(); time.sleep(600)"
LIES = PRELUDE + "read(); answer('42')"
MUMBLES = PRELUDE + "read(); sys.stdout.buffer.write(b'x' * 9 + b'\\xff' * 999); sys.stdout.flush()"


@asynccontextmanager
async def solver(
    program: str, *, grace_s: float = 20.0
) -> AsyncIterator[tuple[Solver, ListInbox, Callable[[int], fx.SolveAllocation]]]:
    inbox = ListInbox()
    made = Solver(inbox, command=(sys.executable, "-c", program), grace_s=grace_s)
    task = asyncio.create_task(made.run())
    try:
        yield made, inbox, lambda epoch: fx.SolveAllocation(epoch=epoch, problem=PROBLEM)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_plans_come_back_with_their_epoch_and_the_process_stays_warm() -> None:
    async with solver(ANSWERS) as (made, inbox, ask):
        made.perform_solve(ask(1))
        await until(lambda: len(inbox.events) == 1, timeout_s=30)
        pid = made.process_id
        made.perform_solve(ask(2))
        await until(lambda: len(inbox.events) == 2, timeout_s=30)
        assert made.process_id == pid
    assert inbox.events == [
        ev.AllocationSolved(epoch=1, allocation=ALLOCATION),
        ev.AllocationSolved(epoch=2, allocation=ALLOCATION),
    ]
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("program", "code", "text"),
    [
        (CRASHES, "solver_failed", "ended with 7"),
        (LIES, "solver_failed", "answered with a str"),
        (MUMBLES, "solver_failed", ""),
    ],
)
async def test_a_crash_or_nonsense_is_a_reason(program: str, code: str, text: str) -> None:
    async with solver(program) as (made, inbox, ask):
        made.perform_solve(ask(1))
        await until(lambda: bool(inbox.events), timeout_s=30)
    (event,) = inbox.events
    assert isinstance(event, ev.AllocationSolved) and event.reason is not None
    assert event.allocation is None
    assert event.reason.code == code
    assert text in event.reason.message


async def test_a_crash_of_the_solver_leaves_a_greedy_plan_that_says_so() -> None:
    async with solver(IS_FRAIL) as (made, inbox, ask):
        made.perform_solve(ask(1))
        await until(lambda: bool(inbox.events), timeout_s=30)
    (event,) = inbox.events
    assert isinstance(event, ev.AllocationSolved) and event.allocation is not None
    assert event.allocation.placements == ALLOCATION.placements
    assert "ended with 7" in event.allocation.warnings[0]


@pytest.mark.slow
async def test_a_hanging_solver_is_killed_in_time() -> None:
    async with solver(HANGS, grace_s=0.2) as (made, inbox, ask):
        made.perform_solve(ask(1))
        await until(lambda: bool(inbox.events), timeout_s=30)
        assert made.process_id is None
    (event,) = inbox.events
    assert isinstance(event, ev.AllocationSolved) and event.reason is not None
    assert event.reason.code == "solver_timeout"


async def test_a_killed_solver_is_replaced() -> None:
    killed: list[int] = []
    async with solver(HANGS) as (made, inbox, ask):
        made.perform_solve(ask(1))
        for _ in range(2):
            await until(lambda: made.process_id not in (None, *killed), timeout_s=30)
            assert made.process_id is not None
            killed.append(made.process_id)
            os.kill(made.process_id, signal.SIGKILL)
        await until(lambda: bool(inbox.events), timeout_s=30)
        made.perform_solve(ask(2))
        await until(lambda: made.process_id not in (None, *killed), timeout_s=30)
    (event,) = inbox.events
    assert isinstance(event, ev.AllocationSolved) and event.reason is not None
    assert "ended with -9" in event.reason.message


async def test_a_newer_question_replaces_a_waiting_one_and_both_are_answered() -> None:
    async with solver(ANSWERS) as (made, inbox, ask):
        made.perform_solve(ask(1))
        made.perform_solve(ask(2))
        await until(lambda: len(inbox.events) == 2, timeout_s=30)
    first, second = inbox.events
    assert isinstance(first, ev.AllocationSolved) and first.reason is not None
    assert (first.epoch, first.reason.code) == (1, "superseded")
    assert second == ev.AllocationSolved(epoch=2, allocation=ALLOCATION)


async def test_the_real_process_says_what_is_missing() -> None:
    inbox = ListInbox()
    made = Solver(inbox)
    task = asyncio.create_task(made.run())
    made.perform_solve(fx.SolveAllocation(epoch=1, problem=PROBLEM))
    await until(lambda: bool(inbox.events), timeout_s=30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (event,) = inbox.events
    assert isinstance(event, ev.AllocationSolved) and event.reason is not None
    assert event.reason.code == "not_enough_memory"
    assert event.reason.message
