"""Whether a constraint compiles, told before any route is opened.

The compiler runs in a process of its own with bounds on time and memory: a hostile schema can stall
or end that process, and nothing else.
"""

import asyncio
import contextlib
import json
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from plait.errors import InvalidRequestError, OverloadedError, ServiceError
from plait.log import get
from plait.types import Constraint

COMMAND: Final = (sys.executable, "-m", "coordinator.gateway.compile_process")
LENGTH_BYTES: Final = 4
ANSWER_BYTES_MAX: Final = 1 << 16
PATH_CHARS_MAX: Final = 200
STOP_S: Final = 2.0
KNOWN_MAX: Final = 512
"""Constraints whose outcome is remembered."""

log = get("constraints")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    """`start_s` is how long the process may take to start, `compile_s` one constraint;
    `waiting_max` how many requests may wait for it."""

    start_s: float = 30.0
    compile_s: float = 3.0
    waiting_max: int = 32


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a constraint cannot be used; `path` leads to the place in its schema."""

    reason: str
    path: str = ""


class ConstraintCheck:
    """Asks the compiler's process, one constraint after the other. The process is started with the
    first question, kept warm, and replaced where it hangs or dies."""

    def __init__(
        self, *, command: Sequence[str] = COMMAND, limits: CheckLimits | None = None
    ) -> None:
        self._command = tuple(command)
        self._limits = limits if limits is not None else CheckLimits()
        self._known: OrderedDict[Constraint, Fault | None] = OrderedDict()
        self._turn = asyncio.Lock()
        self._num_waiting = 0
        self._process: asyncio.subprocess.Process | None = None
        self.num_killed = 0

    async def check(self, constraint: Constraint, param: str) -> None:
        """Return where it compiles. Raises InvalidRequestError with the reason and its path below
        `param`, OverloadedError where too many wait, ServiceError where no compiler starts."""
        if constraint not in self._known:
            fault = await self._in_turn(constraint)
            self._known[constraint] = fault
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(constraint)
        fault = self._known[constraint]
        if fault is not None:
            where = param + fault.path[:PATH_CHARS_MAX]
            raise InvalidRequestError(
                f"{where} cannot be compiled: {fault.reason}", param=where, reason="invalid_schema"
            )

    async def close(self) -> None:
        """End the process. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await process.wait()

    async def _in_turn(self, constraint: Constraint) -> Fault | None:
        if self._num_waiting >= self._limits.waiting_max:
            raise OverloadedError(
                f"{self._num_waiting} schemas are being compiled already; try again in a second",
                reason="queue_full",
            )
        self._num_waiting += 1
        try:
            async with self._turn:
                return await self._ask(constraint)
        finally:
            self._num_waiting -= 1

    async def _ask(self, constraint: Constraint) -> Fault | None:
        process = await self._warm()
        is_done = False
        try:
            async with asyncio.timeout(self._limits.compile_s):
                question = {"kind": constraint.kind, "text": constraint.text}
                payload = json.dumps(question).encode()
                assert process.stdin is not None
                process.stdin.write(len(payload).to_bytes(LENGTH_BYTES, "big") + payload)
                await process.stdin.drain()
                reason, path = await _answer(process)
                is_done = True
        except TimeoutError:
            return Fault(f"it took longer than {self._limits.compile_s:g} s")
        except (EOFError, OSError):
            return Fault("it is more than the compiler can bear")
        finally:
            if not is_done:  # also where the client has left: the answer would be the next one's
                await self._kill()
        return None if reason is None else Fault(reason, path)

    async def _warm(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        self._process = process
        is_ready = False
        try:
            async with asyncio.timeout(self._limits.start_s):
                await _answer(process)
                is_ready = True
        except (TimeoutError, EOFError, OSError) as error:
            raise ServiceError(
                "the compiler of schemas does not start", reason="compiler_failed"
            ) from error
        finally:
            if not is_ready:
                await self._kill()
        return process

    async def _kill(self) -> None:
        self.num_killed += 1
        log.warning("compiler_killed", total=self.num_killed)
        await self.close()


async def _answer(process: asyncio.subprocess.Process) -> tuple[str | None, str]:
    """(reason, path). Raises EOFError where the process ends or talks nonsense."""
    assert process.stdout is not None
    length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
    if length > ANSWER_BYTES_MAX:
        raise EOFError
    reason, path = json.loads(await process.stdout.readexactly(length))
    return reason, path
