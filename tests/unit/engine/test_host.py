"""The engine as the node sees it: a thread behind the port."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from node.engine.host import ThreadedEngineHost
from node.ports import SequenceOpen, StageResult, StageWork
from plait.errors import ModelError, OverloadedError, UnavailableError, WeightsError
from plait.models.source import TensorSource
from plait.types import (
    PREEMPTED,
    DType,
    HeldSpan,
    LayerSpan,
    ModelSource,
    RequestId,
    SamplingParams,
    SourceKind,
)
from tests.unit.engine.kit import CPU, TinyModel, tiny_model

SOURCE = ModelSource(kind=SourceKind.PATH, name="tiny")
GREEDY = SamplingParams(temperature=0.0)
DEADLINE_S = 10.0


class Stage:
    """One engine, what it said, and how to talk to it."""

    def __init__(self, model: TinyModel, engine: ThreadedEngineHost) -> None:
        self.model = model
        self.engine = engine
        self.results: asyncio.Queue[StageResult] = asyncio.Queue()
        self.progress: list[tuple[str, int, int]] = []

    def hear(self, results: list[StageResult]) -> None:
        for result in results:
            self.results.put_nowait(result)

    async def load(self, span: LayerSpan, *, kv_tokens_min: int = 64) -> HeldSpan:
        return await self.engine.load(
            self.model.spec,
            SOURCE,
            span,
            allocation_epoch=3,
            kv_tokens_min=kv_tokens_min,
            progress=lambda *at: self.progress.append(at),
        )

    async def next(self) -> StageResult:
        return await asyncio.wait_for(self.results.get(), DEADLINE_S)


@asynccontextmanager
async def running(
    *,
    opener: Callable[[ModelSource], TensorSource] | None = None,
    memory_bytes: int | None = None,
    kv_tokens_max: int = 256,
) -> AsyncIterator[Stage]:
    model = tiny_model("llama")
    engine = ThreadedEngineHost(
        CPU,
        opener or (lambda _source: model.source()),
        memory_bytes=memory_bytes,
        kv_tokens_max=kv_tokens_max,
        num_threads=1,
    )
    stage = Stage(model, engine)
    engine.start(stage.hear)
    try:
        yield stage
    finally:
        await engine.stop()


def opened(name: str, span: LayerSpan, *, kv_tokens: int = 64, epoch: int = 1) -> SequenceOpen:
    return SequenceOpen(
        request_id=RequestId(name),
        epoch=epoch,
        span=span,
        kv_tokens=kv_tokens,
        wire_dtype=DType.FLOAT32,
        sampling=GREEDY,
    )


def work(name: str, position: int, ids: list[int]) -> StageWork:
    return StageWork(RequestId(name), 1, position, len(ids), token_ids=ids, sample=True)


async def test_a_prompt_becomes_transformers_tokens() -> None:
    async with running() as stage:
        held = await stage.load(stage.model.spec.whole)
        assert (held.allocation_epoch, held.kv_tokens_max) == (3, 256)
        row_bytes = stage.model.spec.hidden_size * 4
        kept_bytes = stage.model.spec.vocab_size * row_bytes  # room for all, of which one is read
        assert held.read_bytes == held.weight_bytes - kept_bytes + row_bytes > 0
        stage.engine.open(opened("a", held.span))
        text = [5, 6, 7]
        stage.engine.submit(work("a", 0, text))
        for _ in range(8):
            result = await stage.next()
            assert result.token_id == int(stage.model.logits(text)[-1].argmax())
            text.append(result.token_id)
            stage.engine.submit(work("a", len(text) - 1, text[-1:]))
        stats = stage.engine.stats()
        assert stats.kv_tokens_reserved == 16 and stats.num_sequences == 1
        assert stats.tokens_total >= 10 and stats.steps_total >= 8 and stats.stage_ms > 0


async def test_two_engines_make_one_model() -> None:
    async with running() as first, running() as last:
        head = await first.load(LayerSpan(0, 1))
        tail = await last.load(LayerSpan(1, 3))
        first.engine.open(opened("a", head.span))
        last.engine.open(opened("a", tail.span))
        text = [9, 8]
        for _ in range(5):
            position = 0 if len(text) == 2 else len(text) - 1
            first.engine.submit(work("a", position, text[position:]))
            sent = await first.next()
            assert sent.hidden is not None and sent.sample
            hop = StageWork(
                RequestId("a"), 1, sent.position, sent.num_tokens, hidden=sent.hidden, sample=True
            )
            last.engine.submit(hop)
            token = (await last.next()).token_id
            assert token == int(first.model.logits(text)[-1].argmax())
            text.append(token)


async def test_progress_is_heard_on_the_loop() -> None:
    async with running() as stage:
        await stage.load(LayerSpan(0, 2))
        assert stage.progress[0][0] == "fetching" and stage.progress[-1][0] == "loading"
        _, done, total = stage.progress[-1]
        assert done == total > 0


async def test_memory_that_does_not_suffice_is_refused_before_reading() -> None:
    def never(_source: ModelSource) -> TensorSource:
        raise AssertionError("opened although it cannot fit")

    async with running(opener=never, memory_bytes=1 << 20) as stage:
        with pytest.raises(OverloadedError, match="MiB") as refused:
            await stage.load(LayerSpan(0, 2))
        assert refused.value.code == "memory_full"


async def test_memory_that_is_gone_while_loading_is_an_overload() -> None:
    def taken(_source: ModelSource) -> TensorSource:
        raise MemoryError

    async with running(opener=taken) as stage:
        with pytest.raises(OverloadedError, match="smaller memory limit") as refused:
            await stage.load(LayerSpan(0, 2))
        assert refused.value.code == "memory_full"


async def test_slots_go_to_who_came_first_and_closing_frees_them() -> None:
    async with running(kv_tokens_max=100) as stage:
        held = await stage.load(stage.model.spec.whole)
        with pytest.raises(OverloadedError) as refused:
            stage.engine.open(opened("big", held.span, kv_tokens=97))
        assert refused.value.code == "kv_full"
        for name in ("a", "b"):
            stage.engine.open(opened(name, held.span))
            stage.engine.submit(work(name, 0, [1] * 40))
            assert (await stage.next()).error is None
        stage.engine.submit(work("a", 40, [1] * 20))
        results = {r.request_id: r for r in (await stage.next(), await stage.next())}
        assert results[RequestId("a")].error is None
        error = results[RequestId("b")].error
        assert error is not None and error.code == PREEMPTED
        for name in ("a", "b", "b"):
            stage.engine.close(RequestId(name), 1)
        assert stage.engine.stats().kv_tokens_reserved == 0
        stage.engine.open(opened("c", held.span))
        stage.engine.submit(work("c", 0, [1, 2]))
        assert (await stage.next()).error is None


async def test_work_that_does_not_fit_comes_back_as_an_error() -> None:
    async with running() as stage:
        held = await stage.load(stage.model.spec.whole)
        stage.engine.open(opened("a", held.span))
        stage.engine.submit(work("a", 5, [1]))
        refused = await stage.next()
        assert refused.error is not None and refused.error.code == "position_invalid"
        stage.engine.submit(work("a", 0, [1]))
        assert (await stage.next()).error is None


async def test_late_work_is_ignored_and_counted() -> None:
    async with running() as stage:
        await stage.load(stage.model.spec.whole)
        stage.engine.submit(work("gone", 0, [1]))
        assert stage.engine.late_works_total == 1 and stage.results.empty()


async def test_loading_replaces_what_was_held() -> None:
    async with running() as stage:
        held = await stage.load(stage.model.spec.whole)
        stage.engine.open(opened("a", held.span))
        await stage.load(LayerSpan(1, 3))
        assert stage.engine.stats().num_sequences == 0
        with pytest.raises(UnavailableError):
            stage.engine.open(opened("a", held.span, epoch=2))
        stage.engine.open(opened("a", LayerSpan(2, 3), epoch=2))


async def test_unloading_holds_nothing() -> None:
    async with running() as stage:
        held = await stage.load(stage.model.spec.whole)
        await stage.engine.unload()
        assert stage.engine.stats().kv_tokens_max == 0
        with pytest.raises(UnavailableError):
            stage.engine.open(opened("a", held.span))


async def test_other_weights_than_the_networks_are_refused() -> None:
    async with running() as stage:
        source = replace(SOURCE, digest="0" * 64)
        with pytest.raises(WeightsError) as refused:
            await stage.engine.load(
                stage.model.spec,
                source,
                LayerSpan(0, 1),
                allocation_epoch=1,
                kv_tokens_min=8,
                progress=lambda *_at: None,
            )
        assert refused.value.code == "weights_digest"


async def test_a_span_beyond_the_model_is_refused() -> None:
    async with running() as stage:
        with pytest.raises(ModelError):
            await stage.load(LayerSpan(2, 9))


async def test_the_source_is_closed_when_weights_are_broken() -> None:
    model = tiny_model("llama")
    source = model.source()
    source.tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = float("nan")
    async with running(opener=lambda _source: source) as stage:
        with pytest.raises(WeightsError, match="up_proj"):
            await stage.load(LayerSpan(0, 1))
        assert source.is_closed
        assert stage.engine.stats().kv_tokens_max == 0


async def test_a_stopped_engine_says_so() -> None:
    async with running() as stage:
        await stage.load(LayerSpan(0, 1))
    with pytest.raises(UnavailableError):
        await stage.engine.unload()
    await stage.engine.stop()


async def test_stopping_abandons_a_load() -> None:
    model, is_reached, may_go_on = tiny_model("llama"), threading.Event(), threading.Event()

    def opener(_: ModelSource) -> TensorSource:
        is_reached.set()
        assert may_go_on.wait(DEADLINE_S)
        return model.source()

    async with running(opener=opener) as stage:
        load = asyncio.create_task(stage.load(stage.model.spec.whole))
        await asyncio.to_thread(is_reached.wait, DEADLINE_S)
        stop = asyncio.create_task(stage.engine.stop())
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(UnavailableError, match="stopped"):
            await load
        await stop
