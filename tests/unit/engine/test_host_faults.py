"""What the engine's thread does when steps fail, take long, or lose their sequence."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from node.engine.background import JobDone
from node.engine.held import StepRunner
from node.engine.host import ThreadedEngineHost
from node.engine.sequence import StepItem
from node.engine.step_budget import ROWS_MIN
from node.ports import LoadProgress, SequenceOpen, StageResult, StageWork
from plait.errors import OverloadedError, UnavailableError
from plait.models.source import TensorSource
from plait.types import (
    DType,
    HeldSpan,
    LayerSpan,
    ModelSource,
    ModelSpec,
    RequestId,
    SamplingParams,
    SourceKind,
)
from tests.unit.engine.kit import CPU, tiny_model

DEADLINE_S = 10.0
SPEC = tiny_model("llama").spec


class GatedRunner:
    """Runs a step when it is let, or fails it; remembers what it ran."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.failure: Exception | None = None
        self.steps: list[list[str]] = []
        self.is_far = False
        self.refusal: OverloadedError | None = None
        self.fetches: list[JobDone] = []
        self.is_closed = False

    def run(self, items: list[StepItem]) -> list[StageResult]:
        self.entered.release()
        assert self.let.acquire(timeout=DEADLINE_S)
        self.steps.append([item.work.request_id for item in items])
        if self.failure is not None:
            raise self.failure
        return [
            StageResult(w.request_id, w.epoch, w.position, w.num_tokens, token_id=7)
            for w in (item.work for item in items)
        ]

    def prepare(self, work: StageWork, sampler: object, done: JobDone) -> bool:
        if self.refusal is not None:
            raise self.refusal
        if self.is_far:
            self.fetches.append(done)
        return not self.is_far

    def close(self) -> None:
        self.is_closed = True


class GatedLoader:
    """Hands out one runner for any span."""

    def __init__(self) -> None:
        self.runner = GatedRunner()

    def usable_bytes(self) -> int:
        return 1 << 30

    def load(
        self,
        spec: ModelSpec,
        source: ModelSource,
        span: LayerSpan,
        *,
        allocation_epoch: int,
        kv_tokens_min: int,
        progress: LoadProgress,
    ) -> tuple[StepRunner, HeldSpan]:
        held = HeldSpan(
            model_id=spec.model_id,
            span=span,
            allocation_epoch=allocation_epoch,
            digest="",
            weight_bytes=0,
            read_bytes=0,
            kv_tokens_max=kv_tokens_min,
        )
        return self.runner, held

    def release(self) -> None:
        return None


def never(_source: ModelSource) -> TensorSource:
    raise AssertionError("nothing is read here")


class Story:
    """An engine over a gated runner, with all layers held."""

    def __init__(self, linger_ms_max: float = 0.0) -> None:
        loader = GatedLoader()
        self.runner = loader.runner
        seconds = itertools.count(step=100)
        self.engine = ThreadedEngineHost(
            CPU,
            never,
            linger_ms_max=linger_ms_max,
            now_ns=lambda: next(seconds) * 10**9,
            loader=loader,
        )
        self.results: asyncio.Queue[StageResult] = asyncio.Queue()

    def hear(self, results: list[StageResult]) -> None:
        for result in results:
            self.results.put_nowait(result)

    async def load(self) -> None:
        await self.engine.load(
            SPEC,
            ModelSource(kind=SourceKind.PATH, name="tiny"),
            SPEC.whole,
            allocation_epoch=1,
            kv_tokens_min=100,
            progress=lambda *_at: None,
        )

    def open(self, name: str, *, epoch: int = 1, sampling: SamplingParams | None = None) -> None:
        self.engine.open(
            SequenceOpen(
                request_id=RequestId(name),
                epoch=epoch,
                span=SPEC.whole,
                kv_tokens=50,
                wire_dtype=DType.FLOAT32,
                sampling=sampling,
            )
        )

    def submit(self, name: str, position: int, *, epoch: int = 1) -> None:
        self.engine.submit(StageWork(RequestId(name), epoch, position, 1, token_ids=[1]))

    async def step_begins(self) -> None:
        assert await asyncio.to_thread(self.runner.entered.acquire, timeout=DEADLINE_S)

    async def next(self) -> StageResult:
        return await asyncio.wait_for(self.results.get(), DEADLINE_S)


@asynccontextmanager
async def story(linger_ms_max: float = 0.0) -> AsyncIterator[Story]:
    told = Story(linger_ms_max)
    told.engine.start(told.hear)
    try:
        await told.load()
        yield told
    finally:
        told.runner.let.release(100)
        await told.engine.stop()


async def test_a_step_that_fails_fails_its_requests_and_nothing_else() -> None:
    async with story() as told:
        told.runner.let.release(100)
        told.runner.failure = RuntimeError("out of memory")
        told.open("a")
        told.submit("a", 0)
        failed = await told.next()
        assert failed.error is not None and failed.error.code == "engine_error"
        assert "out of memory" in failed.error.message
        told.runner.failure = None
        told.open("b")
        told.submit("b", 0)
        assert (await told.next()).token_id == 7


async def test_results_of_a_sequence_closed_meanwhile_are_dropped() -> None:
    async with story() as told:
        told.open("a")
        told.open("b")
        told.submit("a", 0)
        await told.step_begins()
        told.engine.close(RequestId("a"), 1)
        assert told.engine.stats().num_sequences == 1
        told.submit("b", 0)
        told.runner.let.release(2)
        assert (await told.next()).request_id == "b"
        assert told.results.empty()


async def test_a_prompt_is_cut_where_somebody_decodes() -> None:
    async with story() as told:
        told.runner.let.release(100)
        for name in ("a", "b"):
            told.open(name, sampling=SamplingParams(temperature=0.0))
        prompt = StageWork(RequestId("b"), 1, 0, 45, token_ids=[1] * 45, sample=True)
        first = StageWork(RequestId("a"), 1, 0, 20, token_ids=[1] * 20, sample=True)
        for work in (first, prompt):  # b comes while nobody knows how long steps take
            told.engine.submit(work)
            assert (await told.next()).num_tokens == work.num_tokens
        told.engine.close(RequestId("b"), 1)
        told.engine.submit(StageWork(RequestId("a"), 1, 20, 1, token_ids=[1], sample=True))
        assert (await told.next()).num_tokens == 1
        told.open("c")
        told.engine.submit(StageWork(RequestId("c"), 1, 0, 45, token_ids=[1] * 45))
        assert ROWS_MIN <= (await told.next()).num_tokens < 30


async def test_works_that_come_during_a_step_share_the_next() -> None:
    async with story() as told:
        told.open("a")
        told.open("b")
        told.submit("a", 0)
        await told.step_begins()
        told.submit("a", 1)
        told.submit("b", 0)
        told.submit("a", 2)
        assert told.engine.stats().queue_tokens == 3
        told.runner.let.release(3)
        for _ in range(4):
            await told.next()
        assert told.runner.steps == [["a"], ["a", "b"], ["a"]]


async def test_a_step_waits_a_moment_for_the_works_of_other_sequences() -> None:
    """Steps take 100 s by this engine's clock, so it may wait for 5 s: far more than is needed."""
    async with story(linger_ms_max=1e9) as told:
        told.runner.let.release(3)
        told.open("a")
        told.submit("a", 0)
        assert (await told.next()).request_id == "a"
        told.open("b")
        told.submit("a", 1)
        await told.step_begins()
        assert not await asyncio.to_thread(told.runner.entered.acquire, timeout=0.05)
        told.submit("b", 0)
        await told.next()
        await told.next()
        assert told.runner.steps == [["a"], ["a", "b"]]


async def test_a_lone_sequence_waits_for_nobody() -> None:
    async with story(linger_ms_max=1e9) as told:
        told.runner.let.release(100)
        told.open("a")
        for position in range(5):
            told.submit("a", position)
            assert (await asyncio.wait_for(told.results.get(), 2.0)).position == position


async def test_unloading_answers_the_works_that_wait() -> None:
    async with story() as told:
        told.open("a")
        told.submit("a", 0)
        await told.step_begins()
        told.submit("a", 1)
        unloading = asyncio.create_task(told.engine.unload())
        await asyncio.sleep(0)  # the call is queued
        told.runner.let.release(1)
        await asyncio.wait_for(unloading, DEADLINE_S)
        assert (await told.next()).token_id == 7  # the step under way was finished
        lost = await told.next()
        assert lost.error is not None and lost.error.code == "span_unloaded"
        assert lost.position == 1
        told.submit("a", 2)
        assert told.engine.late_works_total == 1


async def test_stopping_answers_calls_that_wait() -> None:
    async with story() as told:
        told.open("a")
        told.submit("a", 0)
        await told.step_begins()
        call = asyncio.create_task(told.engine.unload())
        await asyncio.sleep(0)  # the call is queued
        stopping = asyncio.create_task(told.engine.stop())
        await asyncio.sleep(0)
        told.runner.let.release(1)
        await asyncio.wait_for(stopping, DEADLINE_S)
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(call, DEADLINE_S)
