"""A whole model in one process, without a queue: steps as a node's engine runs them."""

import time
from collections.abc import Sequence as Rows
from dataclasses import replace

import torch
from torch import Tensor

from node.engine.device import Device, pick_device
from node.engine.kv_cache import KvPool
from node.engine.loader import load_stage
from node.engine.runner import Runner
from node.engine.sequence import Sequence, StepItem
from node.engine.stage import HeldStage
from node.ports import SequenceOpen, StageWork
from plait.models import open_source
from plait.types import (
    DType,
    KvDtype,
    ModelSource,
    ModelSpec,
    RequestId,
    SamplingParams,
    WeightFormat,
)

POSITIONS = 1024
_REQUESTS_MAX = 8


class EngineRig:
    """One format of one model. `num_threads` is set in the calling thread before each run."""

    def __init__(
        self,
        source: ModelSource,
        spec: ModelSpec,
        weight_format: WeightFormat,
        *,
        kv_dtype: KvDtype = KvDtype.NATIVE,
    ) -> None:
        self.spec = replace(spec, weight_format=weight_format)
        self._device: Device = replace(pick_device("cpu", DType.FLOAT32), kv_dtype=kv_dtype)
        self.stage: HeldStage = load_stage(
            open_source(source),
            self.spec,
            self.spec.whole,
            self._device,
            num_positions=POSITIONS,
            cached_rows=4096,
            progress=lambda _done, _total: None,
        )
        pool = KvPool(
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            num_slots=POSITIONS * _REQUESTS_MAX,
            device=self._device,
        )
        self.runner = Runner(self.stage, pool, self._device)

    def decode(
        self, prompt: Rows[int], num_requests: int, num_tokens: int, *, num_threads: int = 1
    ) -> tuple[list[int], float]:
        """Greedy ids of the first request, and all requests' tokens a second after the prompts."""
        torch.set_num_threads(num_threads)
        sequences = [self._open(index) for index in range(num_requests)]
        last = [self._step([self._work(s, 0, prompt)])[0] for s in sequences]
        drawn = [last[0]]
        started = time.perf_counter()
        for step in range(num_tokens - 1):
            works = [
                self._work(s, len(prompt) + step, [token])
                for s, token in zip(sequences, last, strict=True)
            ]
            last = self._step(works)
            drawn.append(last[0])
        seconds = time.perf_counter() - started
        return drawn, num_requests * (num_tokens - 1) / seconds

    def prefill(self, prompt: Rows[int]) -> float:
        """Prompt tokens a second of one step."""
        torch.set_num_threads(1)
        sequence = self._open(0)
        started = time.perf_counter()
        self._step([self._work(sequence, 0, prompt)])
        seconds = time.perf_counter() - started
        return len(prompt) / seconds

    @torch.inference_mode()
    def logits(self, ids: Rows[int]) -> Tensor:
        """(T, vocab) float32 of one text."""
        torch.set_num_threads(1)
        sequence = self._open(0)
        item = self._work(sequence, 0, ids)
        (rows,) = self.runner.forward([item], [self.runner.input_rows(item)])
        return self.stage.logits(rows)

    def _open(self, index: int) -> Sequence:
        sequence = Sequence(
            SequenceOpen(
                request_id=RequestId(f"r{index}"),
                epoch=0,
                span=self.spec.whole,
                kv_tokens=POSITIONS,
                wire_dtype=DType.FLOAT32,
                sampling=SamplingParams(temperature=0.0),
            )
        )
        sequence.runs = ((index * POSITIONS, POSITIONS),)
        return sequence

    def _work(self, sequence: Sequence, position: int, ids: Rows[int]) -> StepItem:
        request_id = sequence.opened.request_id
        work = StageWork(request_id, 0, position, len(ids), token_ids=ids, sample=True)
        return StepItem(sequence, work)

    def _step(self, items: list[StepItem]) -> list[int]:
        tokens: list[int] = []
        for result in self.runner.run(items):
            if result.token_id is None:
                raise RuntimeError(f"no token: {result.error}")
            tokens.append(result.token_id)
        return tokens
