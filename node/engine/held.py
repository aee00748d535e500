"""From a source of weights to something that runs: memory, weights, cache, runner."""

import gc
from collections.abc import Callable
from typing import Protocol

import torch

from node.engine.background import JobDone
from node.engine.device import Device
from node.engine.embedding import warm_rows
from node.engine.grammar import GrammarCompiler
from node.engine.grammar_thread import GrammarThread, MakeCompiler
from node.engine.heap import give_back
from node.engine.kv_cache import KvPool
from node.engine.layouts.choice import keeps_copies
from node.engine.loader import load_stage
from node.engine.memory import plan_memory
from node.engine.runner import Runner
from node.engine.sampler import SequenceSampler
from node.engine.sequence import StepItem
from node.ports import LoadProgress, StageResult, StageWork
from plait.errors import ModelError, OverloadedError, WeightsError
from plait.models.opening import prefetch
from plait.models.source import TensorSource
from plait.models.tensors import EMBEDDING, whole_tensor_names
from plait.models.vocabulary import Vocabulary, load_vocabulary
from plait.types import HeldSpan, KvDtype, LayerSpan, ModelSource, ModelSpec

OpenSource = Callable[[ModelSource], TensorSource]
"""Opens weights; may take its time. Raises ModelError or WeightsError."""

ReadVocabulary = Callable[[ModelSource], Vocabulary]
"""Reads a model's vocabulary; may take its time. Raises ModelError or WeightsError."""


class StepRunner(Protocol):
    """Runs steps of what is held; lives in the engine's thread."""

    def run(self, items: list[StepItem]) -> list[StageResult]:
        """One result for each item, in order."""
        ...

    def prepare(self, work: StageWork, sampler: SequenceSampler | None, done: JobDone) -> bool:
        """Whether all that `work` of a sequence with `sampler` needs is on this machine; any thread
        may ask. Where not, it is fetched, and `done` is called from another thread. Raises
        OverloadedError."""
        ...

    def close(self) -> None:
        """Let go of files. Idempotent."""
        ...


class SpanLoader(Protocol):
    """Turns a source of weights into a runner."""

    def usable_bytes(self) -> int:
        """What weights, buffers and KV may take together."""
        ...

    def load(
        self,
        spec: ModelSpec,
        source: ModelSource,
        span: LayerSpan,
        *,
        allocation_epoch: int,
        kv_tokens_min: int,
        progress: LoadProgress,
    ) -> tuple[StepRunner, HeldSpan]: ...

    def release(self) -> None:
        """Give memory that nothing refers to any more back to the system."""
        ...


class Loader:
    """Loads spans onto one device within its memory: the SpanLoader of a real node."""

    def __init__(
        self,
        device: Device,
        open_source: OpenSource,
        *,
        memory_bytes: int | None,
        kv_tokens_max: int,
        step_tokens_max: int,
        read_vocabulary: ReadVocabulary = load_vocabulary,
    ) -> None:
        self._device = device
        self._open_source = open_source
        self._read_vocabulary = read_vocabulary
        self._memory_bytes = memory_bytes
        self._kv_tokens_max = kv_tokens_max
        self._step_tokens_max = step_tokens_max

    def usable_bytes(self) -> int:
        """What weights, buffers and KV may take together: the owner's limit or what is free."""
        free = self._device.free_bytes()
        return free if self._memory_bytes is None else min(free, self._memory_bytes)

    def load(
        self,
        spec: ModelSpec,
        source: ModelSource,
        span: LayerSpan,
        *,
        allocation_epoch: int,
        kv_tokens_min: int,
        progress: LoadProgress,
    ) -> tuple[Runner, HeldSpan]:
        """Read and build `span`. Raises as `EngineHost.load` does."""
        try:
            return self._load(spec, source, span, allocation_epoch, kv_tokens_min, progress)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise OverloadedError(
                f"the {self._device.kind} ran out of memory while it loaded layers {span} of "
                f"{spec.model_id}: give the node a smaller memory limit",
                reason="memory_full",
            ) from error

    def _load(
        self,
        spec: ModelSpec,
        source: ModelSource,
        span: LayerSpan,
        allocation_epoch: int,
        kv_tokens_min: int,
        progress: LoadProgress,
    ) -> tuple[Runner, HeldSpan]:
        if span.end > spec.num_layers:
            raise ModelError(f"{spec.model_id} has {spec.num_layers} layers, no {span}")
        plan = plan_memory(
            spec,
            span,
            self._device.compute_dtype,
            usable_bytes=self.usable_bytes(),
            kv_tokens_min=kv_tokens_min,
            kv_tokens_max=self._kv_tokens_max,
            step_tokens_max=self._step_tokens_max,
            packs_weights=keeps_copies(self._device, spec),
            kv_dtype=self._device.kv_dtype,
        )
        progress("fetching", 0, 0)
        opened = self._open_source(source)
        is_kept = False
        try:
            require_digest(opened, source)
            names = whole_tensor_names(spec, span)
            prefetch(opened, names, lambda done, total: progress("fetching", done, total))
            if span.start == 0:
                opened.prefetch_rows(EMBEDDING, warm_rows(spec))
            stage = load_stage(
                opened,
                spec,
                span,
                self._device,
                num_positions=min(spec.context_tokens_max, plan.kv_tokens),
                cached_rows=plan.cached_rows,
                progress=lambda done, total: progress("loading", done, total),
            )
            pool = KvPool(
                num_layers=len(span),
                num_kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                num_slots=plan.kv_tokens,
                device=self._device,
            )
            held = HeldSpan(
                model_id=spec.model_id,
                span=span,
                allocation_epoch=allocation_epoch,
                digest=opened.digest,
                weight_bytes=stage.weight_bytes,
                read_bytes=opened.read_bytes,
                kv_tokens_max=plan.kv_tokens,
                weight_format=spec.weight_format,
                layout=layout_of(stage.layout, self._device.kv_dtype),
            )
            runner = Runner(
                stage, pool, self._device, grammars=GrammarThread(self._compiler(spec, source))
            )
            is_kept = stage.reads_rows
            return runner, held
        finally:
            if not is_kept:
                opened.close()

    def _compiler(self, spec: ModelSpec, source: ModelSource) -> MakeCompiler:
        def make() -> GrammarCompiler:
            return GrammarCompiler(
                self._read_vocabulary(source),
                vocab_size=spec.vocab_size,
                eos_token_ids=spec.eos_token_ids,
            )

        return make

    def release(self) -> None:
        """Give memory that nothing refers to any more back to the system."""
        gc.collect()
        give_back()
        if self._device.kind == "cuda":
            torch.cuda.empty_cache()


def layout_of(weights: str, kv_dtype: KvDtype) -> str:
    """For people: how weights lie in memory, and keys and values where they are made smaller."""
    return weights if kv_dtype is KvDtype.NATIVE else f"{weights}, KV {kv_dtype}"


def require_digest(opened: TensorSource, source: ModelSource) -> None:
    """Raises WeightsError where these are not the weights that the network uses."""
    if source.digest is not None and source.digest != opened.digest:
        raise WeightsError(
            f"the weights of {source.name} have digest {opened.digest[:12]}, the network uses "
            f"{source.digest[:12]}: pull them again with `plait model pull {source.name}`",
            reason="weights_digest",
        )
