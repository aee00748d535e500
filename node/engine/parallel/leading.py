"""What rank 0 holds: its own part of a stage, and the word to the others for each step."""

from dataclasses import replace

from torch import Tensor

from node.engine.embedding import warm_rows
from node.engine.grammar_thread import GrammarThread
from node.engine.held import Loader, OpenSource, layout_of, require_digest
from node.engine.kv_cache import KvPool
from node.engine.loader import load_stage
from node.engine.memory import MemoryPlan, plan_memory
from node.engine.parallel.commands import layers_command
from node.engine.parallel.group import RankGroup, all_of
from node.engine.parallel.joins import GroupJoins
from node.engine.parallel.rank_source import RankSource
from node.engine.parallel.split import rank_spec
from node.engine.runner import Runner
from node.engine.sequence import StepItem
from node.engine.stage import HeldStage
from node.engine.step_plan import StepPlan
from node.ports import LoadProgress, StageResult
from plait.errors import ModelError, WeightsError
from plait.models.opening import prefetch
from plait.models.source import TensorSource
from plait.models.tensors import EMBEDDING, whole_tensor_names
from plait.types import HeldSpan, LayerSpan, ModelSource, ModelSpec
from plait.wire.codec import model_source_to_proto, model_spec_to_proto, span_to_proto
from plait.wire.v1.ranks_pb2 import (
    RankCommand,
    RankDrop,
    RankHead,
    RankLoad,
    RankLoaded,
    RankMemoryAsked,
)

LOAD_S = 3600.0
"""The most that ranks may need to fetch and read their parts; a rank that is gone is noticed in
seconds."""

ASK_S = 60.0

RANK_BUFFER_BYTES = 32 << 20
"""What a rank needs beside its share of what one node needs: its own plans and hidden states."""


class LeadingRunner(Runner):
    """Where a step fails on rank 0, the others wait in the middle of it: the group ends."""

    def __init__(
        self, group: RankGroup, stage: HeldStage, pool: KvPool, grammars: GrammarThread
    ) -> None:
        super().__init__(stage, pool, group.device, grammars=grammars)
        self._group = group

    def run(self, items: list[StepItem]) -> list[StageResult]:
        is_done = False
        try:
            results = super().run(items)
            is_done = True
        finally:
            if not is_done:
                self._group.give_up("a step failed on rank 0")
        return results


class GroupLoader(Loader):
    """Loads spans onto all ranks of a group: the SpanLoader of a node that leads one. `sharing` is
    how many ranks use this rank's device."""

    def __init__(
        self,
        group: RankGroup,
        open_source: OpenSource,
        *,
        memory_bytes: int | None,
        kv_tokens_max: int,
        step_tokens_max: int,
        sharing: int = 1,
    ) -> None:
        super().__init__(
            group.device,
            open_source,
            memory_bytes=memory_bytes,
            kv_tokens_max=kv_tokens_max,
            step_tokens_max=step_tokens_max,
        )
        self._group = group
        self._sharing = sharing

    def usable_bytes(self) -> int:
        """Of all ranks together: parts are equal, so the smallest rank decides. Planners count one
        node's buffers; those of the other ranks are left out here."""
        num_ranks = self._group.num_ranks
        return max(1, num_ranks * self._rank_bytes() - (num_ranks - 1) * RANK_BUFFER_BYTES)

    def _rank_bytes(self) -> int:
        self._group.ask(RankCommand(memory=RankMemoryAsked()))
        mine = super().usable_bytes() // self._sharing
        theirs = self._group.replies("memory", ASK_S)
        return min([mine, *(reply.memory.usable_bytes for reply in theirs)])

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
        plan = self._plan(spec, span, kv_tokens_min)
        progress("fetching", 0, 0)
        opened = self._open_source(source)
        is_kept = False
        try:
            require_digest(opened, source)
            names = whole_tensor_names(spec, span)
            prefetch(opened, names, lambda done, total: progress("fetching", done, total))
            if span.start == 0:
                opened.prefetch_rows(EMBEDDING, warm_rows(spec))
            stage, loaded = self._load_parts(opened, source, spec, span, plan, progress)
            self._group.tuned(spec.hidden_size)
            pool = KvPool(
                num_layers=len(span),
                num_kv_heads=stage.spec.num_kv_heads,
                head_dim=spec.head_dim,
                num_slots=plan.kv_tokens,
                device=self._device,
            )
            held = HeldSpan(
                model_id=spec.model_id,
                span=span,
                allocation_epoch=allocation_epoch,
                digest=opened.digest,
                weight_bytes=stage.weight_bytes + sum(part.weight_bytes for part in loaded),
                read_bytes=opened.read_bytes + sum(part.read_bytes for part in loaded),
                kv_tokens_max=plan.kv_tokens,
                weight_format=spec.weight_format,
                layout=f"{layout_of(stage.layout, self._device.kv_dtype)}, "
                f"{self._group.num_ranks} ranks",
            )
            grammars = GrammarThread(self._compiler(spec, source))
            is_kept = stage.reads_rows
            return LeadingRunner(self._group, stage, pool, grammars), held
        finally:
            if not is_kept:
                opened.close()

    def release(self) -> None:
        """Free what all ranks hold."""
        if self._group.lost is None:
            self._group.try_tell(RankCommand(drop=RankDrop()).SerializeToString())
        super().release()

    def _plan(self, spec: ModelSpec, span: LayerSpan, kv_tokens_min: int) -> MemoryPlan:
        """Of rank 0, which holds the most: its part, and rows of the embedding."""
        return plan_memory(
            rank_spec(spec, self._group.communicator.split),
            span,
            self._device.compute_dtype,
            usable_bytes=self._rank_bytes(),
            kv_tokens_min=kv_tokens_min,
            kv_tokens_max=self._kv_tokens_max,
            step_tokens_max=self._step_tokens_max,
            packs_weights=True,
            kv_dtype=self._device.kv_dtype,
        )

    def _load_parts(
        self,
        opened: TensorSource,
        source: ModelSource,
        spec: ModelSpec,
        span: LayerSpan,
        plan: MemoryPlan,
        progress: LoadProgress,
    ) -> tuple[HeldStage, list[RankLoaded]]:
        """All ranks read at once. Raises what rank 0's part raises, else the first of the others',
        and WeightsError where they have read different weights."""
        group = self._group
        num_positions = min(spec.context_tokens_max, plan.kv_tokens)
        asked = model_source_to_proto(source)
        asked.digest = opened.digest
        group.ask(
            RankCommand(
                load=RankLoad(
                    spec=model_spec_to_proto(spec),
                    source=asked,
                    span=span_to_proto(span),
                    kv_tokens=plan.kv_tokens,
                    num_positions=num_positions,
                )
            )
        )
        communicator = group.communicator
        part = RankSource(opened, spec, communicator.split)
        try:
            stage = load_stage(
                part,
                rank_spec(spec, communicator.split),
                span,
                self._device,
                num_positions=num_positions,
                cached_rows=plan.cached_rows,
                progress=lambda done, total: progress("loading", done, total),
                joins=GroupJoins(
                    communicator, whole_vocab=spec.vocab_size, call_head=self._call_head
                ),
            )
        finally:
            answers = group.answers("loaded", LOAD_S)
        loaded = [reply.loaded for reply in all_of(answers)]
        for reply in loaded:
            if (reply.digest, reply.shared_digest) != (opened.digest, part.shared_digest):
                raise WeightsError(
                    f"the ranks of this group hold different weights of {source.name}: give all "
                    "machines the same files",
                    reason="group_weights",
                )
        return replace(stage, before_layers=self._call_layers), loaded

    def _call_layers(self, rows: Tensor, span: LayerSpan, plan: StepPlan) -> None:
        self._group.tell(layers_command(span, plan.chunks, len(rows)))
        self._group.communicator.broadcast(rows)

    def _call_head(self, num_rows: int) -> None:
        self._group.tell(RankCommand(head=RankHead(num_rows=num_rows)).SerializeToString())
