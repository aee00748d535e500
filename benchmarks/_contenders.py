"""Who decodes: transformers in one process, and plait's engine in one process."""

import asyncio
import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from node.engine.device import pick_device
from node.engine.host import ThreadedEngineHost
from node.ports import SequenceOpen, StageResult, StageWork
from plait import config
from plait.models import CATALOGUE, load_spec, open_source
from plait.models.records import catalogue_folder
from plait.types import (
    DType,
    ModelSource,
    ModelSpec,
    RequestId,
    SamplingParams,
    WeightFormat,
)

_DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class Decoded:
    """Token ids of each request, and how many came in the seconds after every request had its
    first one: what came before belongs to prefill."""

    token_ids: list[list[int]]
    num_timed: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Over all requests together."""
        return self.num_timed / self.seconds


class Contender(Protocol):
    """Something that generates greedily for several requests at once."""

    @property
    def name(self) -> str: ...

    async def decode(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Decoded:
        """`num_tokens` greedy ids for every prompt; prompts are equally long."""
        ...

    async def close(self) -> None: ...


class TransformersContender:
    """One process of transformers: float32, key-value cache, one padded batch."""

    name = "transformers, one process"

    def __init__(self, model_name: str, *, num_threads: int) -> None:
        self._num_threads = num_threads
        entry = CATALOGUE[model_name]
        folder = catalogue_folder(config.models_dir(), model_name)
        # Here: it takes seconds, and other contenders, and --help, need none of it.
        transformers = importlib.import_module("transformers")
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder), gguf_file=entry.file_name, dtype=torch.float32
        )

    async def decode(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Decoded:
        batch = torch.tensor([list(prompt) for prompt in prompts])
        return await asyncio.to_thread(self._decode, batch, num_tokens)

    async def close(self) -> None:
        return None

    @torch.inference_mode()
    def prefill(self, prompt: Sequence[int]) -> float:
        """Prompt tokens a second of one forward pass that needs the last token's logits only."""
        torch.set_num_threads(self._num_threads)
        ids = torch.tensor([list(prompt)])
        started = time.perf_counter()
        self._model(input_ids=ids, use_cache=True, logits_to_keep=1)
        return len(prompt) / (time.perf_counter() - started)

    @torch.inference_mode()
    def _decode(self, prompts: torch.Tensor, num_tokens: int) -> Decoded:
        torch.set_num_threads(self._num_threads)  # counts for the thread that calls it
        output = self._model(input_ids=prompts, use_cache=True)
        step = output.logits[:, -1:].argmax(dim=-1)
        drawn = [step]
        started = time.perf_counter()
        for _ in range(num_tokens - 1):
            output = self._model(
                input_ids=step, past_key_values=output.past_key_values, use_cache=True
            )
            step = output.logits[:, -1:].argmax(dim=-1)
            drawn.append(step)
        seconds = time.perf_counter() - started
        return Decoded(torch.cat(drawn, dim=1).tolist(), len(prompts) * (num_tokens - 1), seconds)


class EngineContender:
    """The node's engine as a node runs it: its own thread, all layers, works queued by a loop."""

    name = "plait engine, one process"

    def __init__(self, engine: ThreadedEngineHost, spec: ModelSpec) -> None:
        self._engine = engine
        self._spec = spec
        self._epoch = 0
        self._results: asyncio.Queue[StageResult] = asyncio.Queue()

    @classmethod
    async def start(
        cls,
        source: ModelSource,
        *,
        num_threads: int,
        weight_format: WeightFormat = WeightFormat.NATIVE,
    ) -> "EngineContender":
        """Load the whole model; it computes in float32."""
        spec = replace(load_spec(source), weight_format=weight_format)
        device = pick_device("cpu", DType.FLOAT32)
        contender = cls(ThreadedEngineHost(device, open_source, num_threads=num_threads), spec)
        engine = contender._engine
        engine.start(contender._hear)
        await engine.load(
            spec,
            source,
            spec.whole,
            allocation_epoch=1,
            kv_tokens_min=4096,
            progress=lambda _phase, _done, _total: None,
        )
        return contender

    async def decode(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Decoded:
        async with asyncio.timeout(_DEADLINE_S):
            return await self._decode(prompts, num_tokens)

    async def _decode(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Decoded:
        self._epoch += 1
        drawn: dict[RequestId, list[int]] = {}
        for index, prompt in enumerate(prompts):
            request_id = RequestId(f"r{index}")
            drawn[request_id] = []
            self._open(request_id, len(prompt) + num_tokens)
            self._submit(request_id, 0, prompt)
        for _ in prompts:
            await self._draw(drawn)
        started = time.perf_counter()
        for request_id, ids in drawn.items():
            self._submit(request_id, len(prompts[0]), ids[-1:])
        for _ in range(len(prompts) * (num_tokens - 1)):
            result = await self._draw(drawn)
            if len(drawn[result.request_id]) < num_tokens:
                self._submit(result.request_id, result.position + 1, drawn[result.request_id][-1:])
        seconds = time.perf_counter() - started
        for request_id in drawn:
            self._engine.close(request_id, self._epoch)
        return Decoded(list(drawn.values()), len(prompts) * (num_tokens - 1), seconds)

    async def prefill_s(self, prompt: Sequence[int]) -> float:
        """Seconds until the first token."""
        self._epoch += 1
        request_id = RequestId("r0")
        self._open(request_id, len(prompt) + 1)
        started = time.perf_counter()
        self._submit(request_id, 0, prompt)
        drawn = False
        while not drawn:  # a long prompt runs in parts
            result = await asyncio.wait_for(self._results.get(), _DEADLINE_S)
            if result.error is not None:
                raise RuntimeError(f"no token: {result.error}")
            drawn = result.token_id is not None
        seconds = time.perf_counter() - started
        self._engine.close(request_id, self._epoch)
        return seconds

    async def close(self) -> None:
        await self._engine.stop()

    def _hear(self, results: list[StageResult]) -> None:
        for result in results:
            self._results.put_nowait(result)

    async def _draw(self, drawn: dict[RequestId, list[int]]) -> StageResult:
        result = await self._results.get()
        if result.token_id is None:
            raise RuntimeError(f"no token: {result.error}")
        drawn[result.request_id].append(result.token_id)
        return result

    def _open(self, request_id: RequestId, kv_tokens: int) -> None:
        self._engine.open(
            SequenceOpen(
                request_id=request_id,
                epoch=self._epoch,
                span=self._spec.whole,
                kv_tokens=kv_tokens,
                wire_dtype=DType.FLOAT32,
                sampling=SamplingParams(temperature=0.0),
            )
        )

    def _submit(self, request_id: RequestId, position: int, ids: Sequence[int]) -> None:
        self._engine.submit(
            StageWork(request_id, self._epoch, position, len(ids), token_ids=ids, sample=True)
        )
