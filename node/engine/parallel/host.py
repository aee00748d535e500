"""The engine of a node that leads a tensor-parallel group: one node to everybody outside."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from node.engine.held import OpenSource
from node.engine.host import ThreadedEngineHost
from node.engine.measure import measure_device
from node.engine.parallel.group import RankGroup
from node.engine.parallel.leading import ASK_S, GroupLoader
from node.engine.parallel.rank import layer_report
from node.engine.parallel.split import require_even
from node.engine.parallel.torch_ranks import SumTime
from node.ports import MEASURE_S, DeviceReport
from plait.types import LayerTiming, ModelSpec
from plait.wire.codec import model_spec_to_proto
from plait.wire.v1.ranks_pb2 import (
    RankCommand,
    RankDeviceReport,
    RankLayerReport,
    RankMeasureDevice,
    RankMeasureLayer,
)

STEP_TOKENS_MAX: Final = {"cpu": 256, "cuda": 2048}
_PREFILL_TOKENS: Final = 64
_EXTRA_SEQUENCES: Final = 3


class GroupEngineHost(ThreadedEngineHost):
    """As the port says, over the ranks of `group`, which is formed and closed here. Measured is the
    slowest rank: parts are equal, and all wait for all."""

    def __init__(
        self,
        group: RankGroup,
        open_source: OpenSource,
        *,
        memory_bytes: int | None,
        kv_tokens_max: int = 32_768,
        num_threads: int | None = None,
        chunks_prompts: bool = True,
        measure_s: float = MEASURE_S,
        sharing: int = 1,
    ) -> None:
        step_tokens_max = STEP_TOKENS_MAX[group.device.kind]
        loader = GroupLoader(
            group,
            open_source,
            memory_bytes=memory_bytes,
            kv_tokens_max=kv_tokens_max,
            step_tokens_max=step_tokens_max,
            sharing=sharing,
        )
        super().__init__(
            group.device,
            open_source,
            kv_tokens_max=kv_tokens_max,
            step_tokens_max=step_tokens_max,
            num_threads=num_threads,
            chunks_prompts=chunks_prompts,
            measure_s=measure_s,
            loader=loader,
        )
        self._group = group
        self._group_loader = loader

    @property
    def group(self) -> RankGroup:
        return self._group

    async def form(self) -> None:
        """Before `start`. Raises as `RankGroup.form`."""
        await asyncio.to_thread(self._group.form)

    def when_lost(self, hear: Callable[[str], None]) -> None:
        """`hear` is called on this event loop, once, where a rank is gone."""
        loop = asyncio.get_running_loop()
        self._group.on_lost = lambda why: _call_on(loop, hear, why)
        if self._group.lost is not None:
            hear(self._group.lost)

    async def stop(self) -> None:
        """Also sends the ranks away."""
        try:
            await super().stop()
        finally:
            await asyncio.to_thread(self._group.close)

    async def measure_device(self) -> DeviceReport:
        return await self._call(self._measure_device)

    async def measure_layer(self, spec: ModelSpec) -> LayerTiming:
        """Raises ModelError where the ranks cannot share this model equally."""
        return await self._call(lambda: self._measure_layer(spec))

    def _measure_device(self) -> DeviceReport:
        group = self._group
        memory_bytes = self._group_loader.usable_bytes()
        group.ask(RankCommand(device=RankMeasureDevice(measure_s=self._measure_s)))
        mine = measure_device(
            group.device, memory_bytes // group.num_ranks, budget_s=self._measure_s
        )
        reports = [reply.device for reply in group.replies("device", ASK_S)]
        reports.append(
            RankDeviceReport(
                memory_bytes_per_s=mine.memory_bytes_per_s, flops_per_s=mine.flops_per_s
            )
        )
        return DeviceReport(
            device_kind=mine.device_kind,
            device_name=f"{group.num_ranks} x {mine.device_name}",
            memory_bytes=memory_bytes,
            memory_bytes_per_s=group.num_ranks * min(r.memory_bytes_per_s for r in reports),
            flops_per_s=group.num_ranks * min(r.flops_per_s for r in reports),
            compute_dtype=mine.compute_dtype,
            kv_dtype=mine.kv_dtype,
        )

    def _measure_layer(self, spec: ModelSpec) -> LayerTiming:
        group = self._group
        require_even(spec, group.num_ranks)
        told = model_spec_to_proto(spec)
        group.ask(RankCommand(layer=RankMeasureLayer(spec=told, measure_s=self._measure_s)))
        reports = [layer_report(group.device, told, group.communicator.split, self._measure_s)]
        reports += [reply.layer for reply in group.replies("layer", ASK_S)]
        return group_timing(spec, reports, group.tuned(spec.hidden_size))


def group_timing(
    spec: ModelSpec, reports: Sequence[RankLayerReport], sums: Sequence[SumTime]
) -> LayerTiming:
    """The slowest rank's part of a layer and two sums; of the head, its rows out and the logits
    back; of a step, its rows out."""
    sum_ms = {of.num_rows: of.sum_ms for of in sums}
    extra_ms = max(0.0, sum_ms[1 + _EXTRA_SEQUENCES] - sum_ms[1]) / _EXTRA_SEQUENCES
    return LayerTiming(
        model_id=spec.model_id,
        decode_layer_ms=max(r.decode_layer_ms for r in reports) + 2 * sum_ms[1],
        decode_layer_ms_per_extra=max(r.decode_layer_ms_per_extra for r in reports) + 2 * extra_ms,
        prefill_layer_ms_per_token=max(r.prefill_layer_ms_per_token for r in reports)
        + 2 * sum_ms[_PREFILL_TOKENS] / _PREFILL_TOKENS,
        head_ms=max(r.head_ms for r in reports) + 2 * sum_ms[1],
        embed_ms=max(r.embed_ms for r in reports),
        step_overhead_ms=max(r.step_overhead_ms for r in reports) + sum_ms[1],
    )


def _call_on(loop: asyncio.AbstractEventLoop, hear: Callable[[str], None], why: str) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(hear, why)
