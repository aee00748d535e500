"""Which works share a step, by a clock that says how long steps take."""

import asyncio
import threading
from dataclasses import replace

from node.engine.host import ThreadedEngineHost
from node.ports import StageResult
from tests.unit.engine.kit import CPU, tiny_model
from tests.unit.engine.test_host import DEADLINE_S, SOURCE, opened, work

MS = 1_000_000


class GatedClock:
    """Steps take 1 ms, one begins every `every_ms`. While shut, the engine waits at its step."""

    def __init__(self, every_ms: int) -> None:
        self._every_ms = every_ms
        self._num_calls = 0
        self._now_ns = 0
        self.gate = threading.Event()
        self.gate.set()
        self.is_waiting = threading.Event()

    def __call__(self) -> int:
        if not self.gate.is_set():
            self.is_waiting.set()
            assert self.gate.wait(DEADLINE_S)
        self._num_calls += 1
        is_end = self._num_calls % 2 == 0
        self._now_ns += MS if is_end else (self._every_ms - 1) * MS
        return self._now_ns


async def steps_of_two_that_wait(every_ms: int) -> list[list[str]]:
    """Who ran together when two works had come while a third one ran."""
    model, clock = tiny_model("llama"), GatedClock(every_ms)
    heard: asyncio.Queue[list[StageResult]] = asyncio.Queue()
    engine = ThreadedEngineHost(
        CPU, lambda _: model.source(), kv_tokens_max=256, num_threads=1, now_ns=clock
    )
    engine.start(heard.put_nowait)
    try:
        await engine.load(
            model.spec,
            SOURCE,
            model.spec.whole,
            allocation_epoch=1,
            kv_tokens_min=64,
            progress=lambda *_: None,
        )
        for name in "abc":
            engine.open(replace(opened(name, model.spec.whole), travel_ms=10.0))
        for position in range(5):
            for name in "abc":
                engine.submit(work(name, position, [5]))
                await asyncio.wait_for(heard.get(), DEADLINE_S)
        clock.gate.clear()
        engine.submit(work("c", 5, [5]))
        assert await asyncio.to_thread(clock.is_waiting.wait, DEADLINE_S)
        engine.submit(work("a", 5, [5]))
        engine.submit(work("b", 5, [5]))
        clock.gate.set()
        steps: list[list[str]] = []
        while sum(map(len, steps)) < 3:
            results = await asyncio.wait_for(heard.get(), DEADLINE_S)
            steps.append([result.request_id for result in results])
        return steps
    finally:
        clock.gate.set()
        await engine.stop()


async def test_a_stage_with_time_to_spare_takes_one_after_the_other() -> None:
    assert await steps_of_two_that_wait(every_ms=20) == [["c"], ["a"], ["b"]]


async def test_a_stage_without_takes_those_that_wait_together() -> None:
    assert await steps_of_two_that_wait(every_ms=1) == [["c"], ["a", "b"]]
