"""The engine in its own thread: `node.ports.EngineHost` over a runner."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from node.engine.batcher import Batcher
from node.engine.device import Device
from node.engine.held import Loader, OpenSource, SpanLoader, StepRunner
from node.engine.measure import measure_device, measure_layer
from node.engine.patience import Patience
from node.engine.sequence import Sequence, StepItem
from node.engine.step_budget import StepBudget
from node.engine.step_meter import StepMeter
from node.ports import (
    MEASURE_S,
    DeviceReport,
    EngineStats,
    LoadProgress,
    ResultSink,
    SequenceOpen,
    StageResult,
    StageWork,
)
from plait.errors import FrameError, OverloadedError, PlaitError, UnavailableError
from plait.types import (
    PREEMPTED,
    HeldSpan,
    LayerSpan,
    LayerTiming,
    ModelSource,
    ModelSpec,
    Reason,
    RequestId,
)

_T = TypeVar("_T")
_STOP_TIMEOUT_S = 30.0
_IDLE_WAIT_S = 1.0
_STEP_TOKENS_MAX = {"cpu": 256, "cuda": 2048}
"""Prefill rows of a step: more than saturate the device, few enough for the decodes beside them."""

_GROUP_MAX = {"cpu": 6, "cuda": 64}
"""Rows up to which a decode step takes about as long as for one: requests up to here share steps;
beyond, several groups keep several stages busy."""

_LINGER_MS_MAX = 15.0

_STAGE_MS_KEPT = 0.9
"""Share of the old value when a step's time is averaged into `stage_ms`."""


class ThreadedEngineHost:
    """Owns the device in one thread; the event loop only queues and hears.

    `memory_bytes` caps what is used of the device (None: what is free when it is asked for),
    `num_threads` is torch's, in the engine's thread (None: torch's default), `step_tokens_max` the
    prefill rows of one step, `linger_ms_max` how long a step may wait for late works, `measure_s`
    how long steps are timed beforehand. Without `chunks_prompts` decodes wait for whole steps of
    prompts. `open_source` opens weights; `now_ns` measures steps; `loader` is a test's.
    """

    def __init__(
        self,
        device: Device,
        open_source: OpenSource,
        *,
        memory_bytes: int | None = None,
        kv_tokens_max: int = 32_768,
        step_tokens_max: int | None = None,
        queue_tokens_max: int = 65_536,
        num_threads: int | None = None,
        linger_ms_max: float = _LINGER_MS_MAX,
        chunks_prompts: bool = True,
        measure_s: float = MEASURE_S,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        loader: SpanLoader | None = None,
    ) -> None:
        self._device = device
        step_tokens_max = step_tokens_max or _STEP_TOKENS_MAX[device.kind]
        self._loader: SpanLoader = loader or Loader(
            device,
            open_source,
            memory_bytes=memory_bytes,
            kv_tokens_max=kv_tokens_max,
            step_tokens_max=step_tokens_max,
        )
        self._num_threads, self._measure_s = num_threads, measure_s
        self._chunks_prompts = chunks_prompts
        self._now_ns = now_ns
        self._batcher = Batcher(
            step_tokens_max=step_tokens_max,
            queue_tokens_max=queue_tokens_max,
            companions_max=_GROUP_MAX[device.kind],
        )
        self._patience = Patience(
            self._batcher, group_max=_GROUP_MAX[device.kind], limit_ms=linger_ms_max
        )
        self._wake = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sink: ResultSink | None = None
        self._stopping = False
        self._calls: set[asyncio.Future[Any]] = set()
        self._runner: StepRunner | None = None
        self._stage_ms = 0.0
        self._meter, self._budget = StepMeter(), StepBudget()
        self._tokens_total = self._steps_total = 0
        self.late_works_total = 0

    def start(self, sink: ResultSink) -> None:
        """Start the thread; call on the event loop that is to hear the results."""
        assert self._thread is None, "the engine runs already"
        self._loop = asyncio.get_running_loop()
        self._sink = sink
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="plait-engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Finish the step under way, free the device and end the thread. Idempotent."""
        thread = self._thread
        if thread is None:
            return
        with self._wake:
            self._stopping = True
            self._wake.notify()
        await asyncio.to_thread(thread.join, _STOP_TIMEOUT_S)
        self._thread = None
        for call in list(self._calls):
            if not call.done():
                call.set_exception(UnavailableError("the engine was stopped"))

    async def measure_device(self) -> DeviceReport:
        memory_bytes = self._loader.usable_bytes
        return await self._call(
            lambda: measure_device(self._device, memory_bytes(), budget_s=self._measure_s)
        )

    async def measure_layer(self, spec: ModelSpec) -> LayerTiming:
        return await self._call(lambda: measure_layer(self._device, spec, budget_s=self._measure_s))

    async def load(
        self,
        spec: ModelSpec,
        source: ModelSource,
        span: LayerSpan,
        *,
        allocation_epoch: int,
        kv_tokens_min: int,
        progress: LoadProgress,
    ) -> HeldSpan:
        """As the port says. What was held is freed first, also where loading then fails."""

        def report(phase: str, done: int, total: int) -> None:
            if self._stopping:  # a node that leaves does not wait for the rest
                raise UnavailableError("the engine was stopped")
            self._post(progress, phase, done, total)

        def load() -> HeldSpan:
            self._drop()
            runner, held = self._loader.load(
                spec,
                source,
                span,
                allocation_epoch=allocation_epoch,
                kv_tokens_min=kv_tokens_min,
                progress=report,
            )
            with self._wake:
                self._runner = runner
                self._batcher.hold(spec, held)
            return held

        return await self._call(load)

    async def unload(self) -> None:
        await self._call(self._drop)

    def open(self, sequence: SequenceOpen) -> int:
        """As the port says; also raises UnavailableError (span not held) and FrameError."""
        with self._wake:
            cached_tokens = self._batcher.open(sequence)
            self._patience.sequence_opened(self._steps_total, sequence.travel_ms)
            return cached_tokens

    def close(self, request_id: RequestId, epoch: int) -> None:
        with self._wake:
            self._batcher.close(request_id, epoch)
            self._wake.notify()  # its slots may be what another waits for

    def rewind(self, request_id: RequestId, epoch: int, position: int) -> None:
        with self._wake:
            self._batcher.rewind(request_id, epoch, position)
            self._wake.notify()

    def submit(self, work: StageWork) -> None:
        """As the port says; never raises. Works of sequences that are not open are counted and
        ignored; one with a wrong position, shape or token, or beyond the queue's bound, comes back
        as an error."""
        try:
            with self._wake:
                if not self._batcher.submit(work):
                    self.late_works_total += 1
                elif self._is_prepared(work):
                    self._wake.notify()
        except (FrameError, OverloadedError) as error:
            self._post_errors([work], Reason(code=error.code, message=error.message))

    def _is_prepared(self, work: StageWork) -> bool:
        """Whether a work that was just queued can run now; else it is set aside until what it needs
        has come. The lock is held."""
        assert self._runner is not None
        try:
            is_prepared = self._runner.prepare(
                work, self._batcher.sampler_of(work), partial(self._fetched, work)
            )
        except OverloadedError:
            self._batcher.abandon(work)
            raise
        if not is_prepared:
            self._batcher.set_aside(work)
        return is_prepared

    def _fetched(self, work: StageWork, error: PlaitError | None) -> None:
        """Called in a thread of the runner's."""
        with self._wake:
            if error is None:
                self._batcher.resume(work)
                self._wake.notify()
                return
            abandoned = self._batcher.abandon(work)
        self._post_errors(abandoned, Reason(code=error.code, message=error.message))

    def stats(self) -> EngineStats:
        with self._wake:
            held = self._batcher.held
            return EngineStats(
                kv_tokens_max=0 if held is None else held.kv_tokens_max,
                kv_tokens_reserved=self._batcher.kv_tokens_used,
                num_sequences=self._batcher.num_sequences,
                stage_ms=self._stage_ms,
                tokens_total=self._tokens_total,
                queue_tokens=self._batcher.queue_tokens,
                steps_total=self._steps_total,
                steps=self._meter.totals,
            )

    async def _call(self, job: Callable[[], _T]) -> _T:
        """Run `job` in the engine's thread, between steps."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)

        def run() -> None:
            try:
                result = job()
            except Exception as error:  # root: the caller hears what went wrong
                self._post(_settle, future, None, error)
            else:
                self._post(_settle, future, result, None)

        with self._wake:
            if self._thread is None or self._stopping:
                raise UnavailableError("the engine is stopped")
            self._jobs.append(run)
            self._wake.notify()
        return await future

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed: nobody is left to hear
            self._stopping = True

    @torch.inference_mode()
    def _run(self) -> None:
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        while True:
            with self._wake:
                while not (self._jobs or self._batcher.has_work or self._stopping):
                    self._wake.wait(_IDLE_WAIT_S)
                self._linger()
                if self._stopping:
                    break
                job = self._jobs.popleft() if self._jobs else None
                items = [] if job is not None else self._take()
                preempted = self._batcher.preempted()
            if job is not None:
                job()
                continue
            assert self._runner is not None
            self._post_preempted(preempted)
            if items:
                self._step(self._runner, items)
        self._drop()

    def _take(self) -> list[StepItem]:
        batcher, rows_max = self._batcher, None
        if self._chunks_prompts and batcher.num_sequences > 1:
            rows_max = self._budget.prompt_rows_max(
                is_decoding=batcher.is_decoding, is_decode_ready=batcher.is_decode_ready
            )
        return batcher.take(rows_max, decodes_max=self._patience.decodes_max)

    def _linger(self) -> None:
        """Wait for works that are about to come, as `Patience` says; the lock is held."""
        if not self._batcher.has_work:
            return
        for expecting, limit_s in self._patience.waits(self._stage_ms, self._steps_total):
            if limit_s > 0 and expecting():
                self._wake.wait_for(self._until(expecting), timeout=limit_s)

    def _until(self, expecting: Callable[[], bool]) -> Callable[[], bool]:
        return lambda: self._stopping or bool(self._jobs) or not expecting()

    def _step(self, runner: StepRunner, items: list[StepItem]) -> None:
        started_ns = self._now_ns()
        has_failed = False
        try:
            results = runner.run(items)
        except Exception as error:  # root: these requests fail, the engine goes on
            has_failed = True
            results = [_engine_failure(item.work, error) for item in items]
        end_ns = self._now_ns()
        step_ms = (end_ns - started_ns) / 1e6
        with self._wake:
            live = [result for i, result in zip(items, results, strict=True) if i.is_wanted]
            self._batcher.finished(items, [result.error is None for result in results])
            if live and self._sink is not None:
                self._post(self._sink, live)  # first: the next stage waits, the books do not
            self._steps_total += 1
            self._patience.stepped(len(items), step_ms, end_ns / 1e6)
            self._tokens_total += sum(item.work.num_tokens for item in items)
            kept = _STAGE_MS_KEPT if self._stage_ms else 0.0
            self._stage_ms = kept * self._stage_ms + (1 - kept) * step_ms
            if not has_failed:
                self._meter.record(items, step_ms)
                self._budget.record(items, step_ms)

    def _drop(self) -> None:
        """Free what is held; works that wait become errors."""
        with self._wake:
            waiting = self._batcher.drop()
            runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()
            del runner
        self._loader.release()
        self._post_errors(
            waiting, Reason(code="span_unloaded", message="the node let go of these layers")
        )

    def _post_preempted(self, preempted: list[Sequence]) -> None:
        reason = Reason(code=PREEMPTED, message="its KV slots went to an earlier request")
        results = [
            StageResult(s.opened.request_id, s.opened.epoch, s.next_position, 0, error=reason)
            for s in preempted
        ]
        if results and self._sink is not None:
            self._post(self._sink, results)

    def _post_errors(self, works: list[StageWork], reason: Reason) -> None:
        if works and self._sink is not None:
            self._post(self._sink, [_error_result(work, reason) for work in works])


def _settle(future: "asyncio.Future[_T]", result: _T, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _engine_failure(work: StageWork, error: Exception) -> StageResult:
    message = f"the engine failed at a step: {type(error).__name__}: {error}"
    return _error_result(work, Reason(code="engine_error", message=message))


def _error_result(work: StageWork, reason: Reason) -> StageResult:
    return StageResult(
        work.request_id,
        work.epoch,
        work.position,
        work.num_tokens,
        sample=work.sample,
        error=reason,
    )
