"""Phase 1 off the loop: the ILP runs in a process that can hang, crash or be killed."""

import asyncio
import contextlib
import pickle
import sys
from collections.abc import Sequence
from typing import Final

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.ports import Inbox
from coordinator.shell.solve_process import LENGTH_BYTES, Answer
from plait.clock import SystemClock
from plait.computing import Allowance
from plait.errors import ServiceError
from plait.log import get
from plait.types import Reason
from scheduler.allocation.problem import Allocation, AllocationProblem

COMMAND: Final = (sys.executable, "-m", "coordinator.shell.solve_process")
ANSWER_BYTES_MAX: Final = 64 << 20
STOP_S: Final = 2.0
LOOK_S: Final = 0.5
log = get("solver")


class SolverError(ServiceError):
    """The solver's process crashed, hung or answered nonsense."""

    reason = "solver_failed"
    is_retryable = True


class Solver:
    """Performs SolveAllocation, the newest epoch first: a newer question replaces a waiting one.

    The process is started with the first question and kept warm. More
    computing for it than the problem's own limit and `grace_s`, or a hang as long, ends it; a fresh
    one is then asked for a greedy plan.
    """

    def __init__(
        self, inbox: Inbox, *, command: Sequence[str] = COMMAND, grace_s: float = 5.0
    ) -> None:
        self._inbox = inbox
        self._command = tuple(command)
        self._grace_s = grace_s
        self._waiting: asyncio.Queue[fx.SolveAllocation] = asyncio.Queue(1)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process_id(self) -> int | None:
        """Of the warm process, for tests and the operator."""
        return self._process.pid if self._process is not None else None

    def perform_solve(self, effect: fx.SolveAllocation) -> None:
        """Queue a question; what waited is answered with `superseded`."""
        if self._waiting.full():
            old = self._waiting.get_nowait()
            message = f"a newer plan ({effect.epoch}) was asked for"
            self._answer(old, (Reason(code="superseded", message=message), ()))
        self._waiting.put_nowait(effect)

    async def run(self) -> None:
        """Serve until cancelled, then end the process."""
        try:
            while True:
                effect = await self._waiting.get()
                self._answer(effect, await self.solve(effect))
        finally:
            await self.stop()

    def _answer(self, effect: fx.SolveAllocation, reply: Answer) -> None:
        answer, shortages = reply
        epoch = effect.epoch
        if isinstance(answer, Reason):
            log.info("plan_failed", epoch=epoch, reason=answer.code, message=answer.message)
            event = ev.AllocationSolved(
                epoch=epoch, allocation=None, reason=answer, shortages=shortages
            )
        else:
            log.info(
                "plan_solved",
                epoch=epoch,
                solver=answer.solver,
                status=answer.status,
                solve_ms=answer.solve_ms,
                placements=len(answer.placements),
                tokens_per_s=round(answer.objective_tokens_per_s, 2),
                is_repair=effect.problem.is_repair,
                moved_nodes=answer.moved_nodes,
                moved_bytes=answer.moved_bytes,
                fetched_bytes=answer.fetched_bytes,
            )
            event = ev.AllocationSolved(epoch=epoch, allocation=answer, shortages=shortages)
        self._inbox.post(event)

    async def solve(self, effect: fx.SolveAllocation) -> Answer:
        """The solver's plan; where its process fails, a greedy one from a fresh process."""
        trouble: str | None = None
        failed = Reason(code="solver_failed", message="the solver was not tried")
        for limit_s in (effect.problem.time_limit_s + self._grace_s, self._grace_s):
            try:
                return await self._within(limit_s, effect.problem, trouble)
            except TimeoutError as late:
                message = f"the solver gave no plan within {late} and was stopped"
                failed = Reason(code="solver_timeout", message=message)
            except (SolverError, OSError) as error:
                message = f"the solver's process failed: {error}"
                failed = Reason(code="solver_failed", message=message)
            await self.stop()
            trouble = failed.message
            log.warning("solver_failed", epoch=effect.epoch, because=trouble)
        return failed, ()

    async def _within(
        self, limit_s: float, problem: AllocationProblem, trouble: str | None
    ) -> Answer:
        """Raises TimeoutError, saying how long that was, where the process computes longer, or
        hangs."""
        allowance = Allowance(limit_s, self.process_id, clock=SystemClock())
        asked = asyncio.ensure_future(self._ask(problem, trouble))
        try:
            while True:
                await asyncio.wait({asked}, timeout=min(LOOK_S, limit_s))
                if asked.done():
                    return asked.result()
                spent = allowance.spent(self.process_id)
                if spent is not None:
                    raise TimeoutError(spent)
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    async def _ask(self, problem: AllocationProblem, trouble: str | None) -> Answer:
        process = await self._warm()
        assert process.stdin is not None and process.stdout is not None
        payload = pickle.dumps((problem, trouble))
        process.stdin.write(len(payload).to_bytes(LENGTH_BYTES, "big") + payload)
        await process.stdin.drain()
        try:
            length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
            if length > ANSWER_BYTES_MAX:
                raise SolverError(f"an answer of {length} bytes")
            answer = pickle.loads(await process.stdout.readexactly(length))
        except asyncio.IncompleteReadError:
            code = await process.wait()
            raise SolverError(f"it ended with {code}; see the log above") from None
        except pickle.UnpicklingError as error:
            raise SolverError(f"its answer cannot be read: {error}") from error
        match answer:
            case (Allocation() | Reason() as outcome, tuple() as shortages):
                return outcome, shortages
        raise SolverError(f"it answered with a {type(answer).__name__}")

    async def _warm(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        return self._process

    async def stop(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await process.wait()
