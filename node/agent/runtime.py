"""The thin shell around the node's core: feeds it events, performs its effects.

Everything runs on the event loop's thread. An event is handled at once, and what its effects
cause is handled before control returns: a frame that arrives is queued for the engine within the
same turn of the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, assert_never

from node.core import NodeCore
from node.core import effects as ef
from node.core import events as ev
from node.core.messages import StageOpen, StatusCode
from node.draft_port import DraftHost
from node.ports import (
    EngineHost,
    Gateway,
    Leaver,
    Links,
    LinkStats,
    Reporter,
    SequenceOpen,
    StageResult,
    StageWork,
)
from plait import log
from plait.clock import Clock
from plait.errors import (
    FrameError,
    ModelError,
    OverloadedError,
    PlaitError,
    ServiceError,
    WeightsError,
)
from plait.types import DraftState, HeldSpan, LayerSpan, ModelSource, ModelSpec, Reason

TICK_S: Final = 0.25

_log = log.get("node")


KeepCached = Callable[[HeldSpan, ModelSpec, ModelSource], None]
"""Remembers that the weights of a span are on this disk."""


ExplainPhase = Callable[[str, LayerSpan], str]
"""A load's phase in more words, e.g. where its bytes come from."""


def _keep_nothing(held: HeldSpan, spec: ModelSpec, source: ModelSource) -> None:
    pass


class NodeRuntime:
    """One node's loop. `connect` it, then `run` it; `post` is its inbox."""

    def __init__(
        self,
        core: NodeCore,
        engine: EngineHost,
        clock: Clock,
        *,
        keep: KeepCached = _keep_nothing,
        drafter: DraftHost | None = None,
    ) -> None:
        self._core = core
        self._engine = engine
        self._clock = clock
        self._keep = keep
        self._drafter = drafter
        self._pending: deque[ev.Event] = deque()
        self._is_handling = False
        self._is_closed = False
        self._loads: deque[ef.LoadSpan | ef.UnloadSpan] = deque()
        self._load_wake = asyncio.Event()

    def connect(
        self,
        *,
        links: Links,
        gateway: Gateway,
        reporter: Reporter,
        leaver: Leaver,
        explain: ExplainPhase = lambda phase, _: phase,
    ) -> None:
        """Give the runtime its hands. Call once, before the first event."""
        self._links = links
        self._gateway = gateway
        self._reporter = reporter
        self._leaver = leaver
        self._explain = explain

    @property
    def core(self) -> NodeCore:
        """To be read, never fed: events go through `post`."""
        return self._core

    def post(self, event: ev.Event) -> None:
        """Handle an event now, and all that follows from it."""
        pending = self._pending
        if self._is_closed:
            return
        pending.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while pending:
                for effect in self._core.handle(pending.popleft(), self._clock.monotonic_ms()):
                    self._perform(effect)
        finally:
            self._is_handling = False

    def close(self) -> None:
        """From now on nothing is handled: a node that ends its streams blames no neighbour."""
        self._is_closed = True

    def results(self, results: list[StageResult]) -> None:
        """The engine's sink."""
        self.post(ev.StepFinished(results))

    async def run(self) -> None:
        """Ticks, loads and the draft model, until cancelled."""
        if self._drafter is not None:
            self._drafter.start(self.post)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tick())
                group.create_task(self._load_in_turn())
        finally:
            if self._drafter is not None:
                await self._drafter.stop()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            due_ms = self._core.next_deadline_ms()
            if due_ms is not None and due_ms <= self._clock.monotonic_ms():
                self.post(ev.Ticked())

    def _perform(self, effect: ef.Effect) -> None:
        match effect:
            case ef.Send():
                if not self._links.send(effect.neighbour_id, effect.message):
                    self._pending.append(
                        ev.SendRefused(
                            neighbour_id=effect.neighbour_id,
                            request_id=effect.message.request_id,
                            epoch=effect.message.epoch,
                        )
                    )
            case ef.SubmitRows():
                self._engine.submit(
                    StageWork(
                        effect.request_id,
                        effect.epoch,
                        effect.position,
                        effect.num_tokens,
                        token_ids=effect.token_ids,
                        hidden=effect.hidden,
                        dtype=effect.dtype,
                        sample=effect.sample,
                        block_name=effect.block_name,
                        drafted_ids=effect.drafted_ids,
                    )
                )
            case ef.SendToGateway():
                if not self._gateway.send(effect.message):
                    _log.warning("gateway_queue_full", request=effect.message.request_id)
            case ef.Dial():
                self._links.dial(effect.neighbour_id, effect.addresses)
            case ef.ReserveKv():
                self._reserve(effect)
            case ef.ReleaseKv():
                self._engine.close(effect.request_id, effect.epoch)
                if self._drafter is not None:
                    self._drafter.close(effect.request_id, effect.epoch)
            case ef.Draft():
                self._draft(effect)
            case ef.RewindKv():
                self._engine.rewind(effect.request_id, effect.epoch, effect.position)
            case ef.LoadSpan() | ef.UnloadSpan():
                self._loads.append(effect)
                self._load_wake.set()
            case ef.Exit():
                self._leaver.leave(effect)
            case (
                ef.ReportSpanLoaded()
                | ef.ReportLoadFailed()
                | ef.ReportHopBroken()
                | ef.ReportDrainAsked()
                | ef.ReportDrained()
            ):
                self._reporter.report(effect)
            case _:
                assert_never(effect)

    def _draft(self, effect: ef.Draft) -> None:
        if self._drafter is None:
            self._pending.append(ev.Drafted(effect.request_id, effect.epoch, ()))
            return
        self._drafter.order(effect)

    async def _check_drafts(self, effect: ef.LoadSpan) -> None:
        """Whether the draft model guesses tokens of the span's model."""
        if self._drafter is None:
            return
        if effect.span.start > 0:
            self.post(ev.DraftModelChanged(state=DraftState.IDLE))
            return
        refusal = await self._drafter.check(effect.spec, effect.source)
        if refusal is None:
            self.post(ev.DraftModelChanged(state=DraftState.GUESSING))
            return
        _log.warning("draft_model_refused", reason=refusal.code, message=refusal.message)
        self.post(ev.DraftModelChanged(state=DraftState.REFUSED, why=refusal.message))

    def _reserve(self, effect: ef.ReserveKv) -> None:
        opened = effect.open
        is_last = opened.stage_index == len(opened.stages) - 1
        try:
            cached_tokens = self._engine.open(
                SequenceOpen(
                    request_id=opened.request_id,
                    epoch=opened.epoch,
                    span=opened.stages[opened.stage_index].span,
                    kv_tokens=opened.kv_tokens,
                    wire_dtype=opened.sent_dtype,
                    prefix=opened.block_names,
                    cached_blocks=opened.cached_blocks,
                    cache_path=effect.cache_path,
                    admission=opened.admission,
                    travel_ms=travel_ms(opened, self._links.stats()),
                    sampling=opened.sampling if is_last else None,
                    penalty_prompt_ids=opened.penalty_prompt_ids,
                    penalty_generated_ids=opened.penalty_generated_ids,
                )
            )
        except PlaitError as error:
            reason = Reason(code=error.code, message=error.message)
            refused = ev.KvRefused(opened.request_id, opened.epoch, _reserve_code(error), reason)
            self._pending.append(refused)
        else:
            reserved = ev.KvReserved(opened.request_id, opened.epoch, cached_tokens)
            self._pending.append(reserved)

    async def _load_in_turn(self) -> None:
        while True:
            while self._loads:
                effect = self._loads.popleft()
                if isinstance(effect, ef.LoadSpan):
                    self.post(await self._load(effect))
                else:
                    await self._engine.unload()
            self._load_wake.clear()
            await self._load_wake.wait()

    async def _load(self, effect: ef.LoadSpan) -> ev.SpanLoaded | ev.SpanLoadFailed:
        epoch = effect.allocation_epoch
        _log.info("span_loading", model=effect.spec.model_id, span=str(effect.span), epoch=epoch)

        def progress(phase: str, done_bytes: int, total_bytes: int) -> None:
            phase = self._explain(phase, effect.span)
            self._reporter.report_progress(epoch, phase, done_bytes, total_bytes)

        try:
            held = await self._engine.load(
                effect.spec,
                effect.source,
                effect.span,
                allocation_epoch=epoch,
                kv_tokens_min=effect.kv_tokens_min,
                progress=progress,
            )
        except PlaitError as error:
            _log.error("span_load_failed", reason=error.code, message=error.message)
            reason = Reason(code=error.code, message=error.message)
            return ev.SpanLoadFailed(epoch, _load_code(error), reason)
        except Exception as error:  # the root of a load: a bug in it must not end the node
            _log.exception("span_load_crashed")
            reason = Reason(code="load_crashed", message=f"{type(error).__name__}: {error}")
            return ev.SpanLoadFailed(epoch, StatusCode.INTERNAL, reason)
        self._keep(held, effect.spec, effect.source)
        await self._check_drafts(effect)
        _log.info("span_loaded", span=str(held.span), weight_bytes=held.weight_bytes)
        return ev.SpanLoaded(held)


def _reserve_code(error: PlaitError) -> StatusCode:
    if isinstance(error, OverloadedError):
        return StatusCode.RESOURCE_EXHAUSTED
    if isinstance(error, FrameError):
        return StatusCode.INVALID_ARGUMENT
    return StatusCode.UNAVAILABLE if isinstance(error, ServiceError) else StatusCode.INTERNAL


def _load_code(error: PlaitError) -> StatusCode:
    if isinstance(error, OverloadedError):
        return StatusCode.RESOURCE_EXHAUSTED
    if isinstance(error, WeightsError):
        return StatusCode.FAILED_PRECONDITION
    return StatusCode.NOT_FOUND if isinstance(error, ModelError) else StatusCode.INTERNAL


def travel_ms(opened: StageOpen, links: Iterable[LinkStats]) -> float:
    """From the stage before and on to the next one, in all, as far as round trips are known."""
    stages, at = opened.stages, opened.stage_index
    before, after = stages[at - 1].node_id, stages[(at + 1) % len(stages)].node_id
    rtts_ms = {link.neighbour_id: link.rtt_ms or 0.0 for link in links}
    return (rtts_ms.get(before, 0.0) + rtts_ms.get(after, 0.0)) / 2
