"""The process that compiles constraints: kept, replaced, bounded."""

import asyncio

import pytest

from coordinator.gateway.constraint_check import CheckLimits, ConstraintCheck
from plait.errors import InvalidRequestError, OverloadedError, ServiceError
from plait.types import Constraint, ConstraintKind

pytestmark = pytest.mark.slow
SCHEMA = Constraint(ConstraintKind.JSON_SCHEMA, '{"type": "object"}')


async def test_outcomes_are_remembered_and_the_process_is_kept() -> None:
    check = ConstraintCheck()
    try:
        await check.check(SCHEMA, "p")
        wrong = Constraint(ConstraintKind.REGEX, "(")
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="p cannot be compiled"):
                await check.check(wrong, "p")
        assert check.num_killed == 0
    finally:
        await check.close()


HANGS = "import sys; sys.stdout.buffer.write(b'\\0\\0\\0\\x0b[\"ready\",0]'); sys.stdout.flush(); sys.stdin.buffer.read()"  # noqa: E501
DIES = HANGS.replace("sys.stdin.buffer.read()", "sys.stdin.buffer.read(4)")


@pytest.mark.parametrize(("script", "what"), [(HANGS, "longer"), (DIES, "bear")])
async def test_a_compiler_that_hangs_or_dies_costs_the_request_that_did_it(
    script: str, what: str
) -> None:
    limits = CheckLimits(compile_s=0.2)
    check = ConstraintCheck(command=("python3", "-c", script), limits=limits)
    try:
        with pytest.raises(InvalidRequestError, match=what):
            await check.check(SCHEMA, "p")
        assert check.num_killed == 1
    finally:
        await check.close()


async def test_without_a_compiler_nothing_is_the_clients_fault() -> None:
    check = ConstraintCheck(command=("python3", "-c", ""))
    with pytest.raises(ServiceError):
        await check.check(SCHEMA, "p")


async def test_few_may_wait_for_the_compiler_and_who_leaves_spoils_nothing() -> None:
    check = ConstraintCheck(limits=CheckLimits(waiting_max=1, compile_s=30))
    try:
        await check.check(SCHEMA, "p")
        slow = Constraint(ConstraintKind.JSON_SCHEMA, '{"enum": [1, 2]}')
        first = asyncio.create_task(check.check(slow, "p"))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await check.check(slow, "p")
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert check.num_killed == 1  # its answer would have been the next one's
        with pytest.raises(InvalidRequestError, match="unclosed"):
            await check.check(Constraint(ConstraintKind.REGEX, "("), "p")
    finally:
        await check.close()
