"""The draft model in a thread of its own: a whole small model that guesses for a first stage.

Its thread steps back behind the stage's where cores are short, and reads prompts piece by piece.
Guesses are drawn as the served model's tokens are, with the same number for (seed, position): where
both models see things alike, they draw alike (Daliri, Musco, Suresh: "Coupling without
communication and drafter-invariant speculative decoding", 2024).
"""

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import torch

from node.core.effects import Draft
from node.core.events import Drafted, DraftModelChanged
from node.draft_port import DraftSink
from node.engine.drafting_book import DraftBook, Guessing, nothing
from node.engine.drafting_model import DraftModel
from node.engine.sequence import Sequence, StepItem
from node.ports import SequenceOpen, StageResult, StageWork
from plait import log
from plait.types import DraftState, DType, ModelSource, ModelSpec, Reason, RequestId, SamplingParams

STOP_S: Final = 10.0
NICENESS: Final = 5
"""Of the draft model's threads, on Linux."""

_log = log.get("drafting")

Command = Callable[[], list[Drafted]]


class Drafter:
    """A `node.draft_port.DraftHost`. `num_threads` is torch's, in its thread."""

    def __init__(
        self,
        model: DraftModel,
        *,
        num_threads: int | None = None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._model = model
        self._num_threads = num_threads
        self._now_ns = now_ns
        self.book = DraftBook(model.num_slots, model.sequence_tokens_max)
        self._vocab_size = model.spec.vocab_size
        self._wake = threading.Condition()
        self._commands: deque[Command] = deque()
        self._is_stopping = False
        self._is_over = False
        self.num_failed = 0
        self._thread: threading.Thread | None = None

    @property
    def model_id(self) -> str:
        return self._model.spec.model_id

    def start(self, sink: DraftSink) -> None:
        assert self._thread is None, "the draft model runs already"
        self._loop = asyncio.get_running_loop()
        self._sink = sink
        self._thread = threading.Thread(target=self._run, name="plait-draft", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        await asyncio.to_thread(thread.join, STOP_S)

    async def check(self, spec: ModelSpec, source: ModelSource) -> Reason | None:
        refusal = await asyncio.to_thread(self._model.refusal, spec, source)
        if refusal is None:
            self._vocab_size = min(spec.vocab_size, self._model.spec.vocab_size)
        return refusal

    def order(self, order: Draft) -> None:
        if not self._do(lambda: self.book.take(order)):
            self._loop.call_soon(self._sink, nothing(order))

    def close(self, request_id: RequestId, epoch: int) -> None:
        def closed() -> list[Drafted]:
            self.book.close(request_id, epoch)
            return []

        self._do(closed)

    def _do(self, command: Command) -> bool:
        """False where the thread has ended."""
        with self._wake:
            if self._is_over:
                return False
            self._commands.append(command)
            self._wake.notify()
            return True

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        try:
            self._serve()
        except Exception as error:  # root of the thread: the node goes on without guesses
            _log.exception("draft_thread_died", model=self.model_id, error=repr(error))
            self._end()
            why = f"its thread died of {type(error).__name__}: {error}"
            self._tell([DraftModelChanged(state=DraftState.LOST, why=why, is_final=True)])
        else:
            self._end()
        self._model.close()

    def _end(self) -> None:
        """From now on nothing is taken, and nothing is held for anybody."""
        with self._wake:
            self._is_over = True
            self._commands.clear()
            self.book = DraftBook(self._model.num_slots, self._model.sequence_tokens_max)

    def _serve(self) -> None:
        stepping: list[Guessing] = []
        while True:
            with self._wake:
                while not (self._commands or stepping or self._is_stopping):
                    self._wake.wait()
                if self._is_stopping:
                    return
                commands = list(self._commands)
                self._commands.clear()
            for command in commands:
                self._tell(command())
            stepping = self.book.next_step()
            if stepping:
                self._step(stepping)
                stepping = self.book.next_step()

    def _step(self, stepping: list[Guessing]) -> None:
        """Run the next rows of each, and tell what was asked for."""
        items: list[StepItem] = []
        runs: list[Guessing] = []
        for sequence in stepping:
            rows, is_guess = sequence.rows()
            if self.book.make_room(sequence, sequence.num_run + len(rows)):
                items.append(_item(sequence, rows, self._model.spec, sample=is_guess))
                runs.append(sequence)
            elif sequence.wanted:
                self._tell([nothing(sequence.order)])
        started_ns = self._now_ns()
        try:
            results = self._model.run(items) if items else []
        except Exception as error:  # root: a draft model that fails costs guesses, no request
            _log.exception("draft_failed", error=repr(error))
            self.num_failed += 1
            results = []
        step_ms = (self._now_ns() - started_ns) / 1e6
        for at, sequence in enumerate(runs):
            self._ran(sequence, items[at], results[at] if results else None, step_ms)
        self._tell(self.book.answers(runs))

    def _ran(
        self, sequence: Guessing, item: StepItem, result: StageResult | None, step_ms: float
    ) -> None:
        guess = None if result is None else result.token_id
        is_lost = result is None or result.error is not None
        if is_lost or (guess is not None and guess >= self._vocab_size):
            self.book.close(sequence.key, sequence.order.epoch)
            if sequence.wanted:
                self._tell([nothing(sequence.order)])
            return
        self.book.ran(sequence, item.work.num_tokens, guess, step_ms)

    def _tell(self, answers: Iterable[Drafted | DraftModelChanged]) -> None:
        for answer in answers:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to hear
                self._loop.call_soon_threadsafe(self._sink, answer)


def _item(sequence: Guessing, rows: list[int], spec: ModelSpec, *, sample: bool) -> StepItem:
    order = sequence.order
    opened = SequenceOpen(
        request_id=order.request_id,
        epoch=order.epoch,
        span=spec.whole,
        kv_tokens=order.kv_tokens,
        wire_dtype=DType.FLOAT32,
        sampling=drawing(order.sampling),
    )
    work = StageWork(
        order.request_id, order.epoch, sequence.num_run, len(rows), token_ids=rows, sample=sample
    )
    of_engine = Sequence(opened)
    of_engine.runs = sequence.runs
    return StepItem(of_engine, work)


def drawing(sampling: SamplingParams) -> SamplingParams:
    """How a guess is drawn: what looks at all tokens so far is left out."""
    return replace(
        sampling,
        repetition_penalty=1.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        constraint=None,
        top_logprobs=None,
    )
