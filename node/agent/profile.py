"""The node measures itself and its way to the coordinator; nothing is taken from a table."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from grpc import aio

from node.ports import DeviceReport, EngineHost
from plait.errors import DeadlineError, UnavailableError
from plait.types import LayerTiming, ModelId, ModelSpec, NodeId, NodeProfile
from plait.wire.v1 import control_pb2, control_pb2_grpc

NUM_ROUND_TRIPS: Final = 5
BULK_BYTES: Final = 512 * 1024
PROBE_LIMIT_S: Final = 30.0


class SelfProfile:
    """Measures once and remembers: a re-attached node does not stop its requests to measure."""

    def __init__(
        self,
        engine: EngineHost,
        now_s: Callable[[], float],
        *,
        up_bytes_per_s: float | None = None,
        down_bytes_per_s: float | None = None,
    ) -> None:
        """The rates are the owner's limits: plans and routes learn no higher ones."""
        self._engine = engine
        self._now_s = now_s
        self._up_bytes_per_s = up_bytes_per_s
        self._down_bytes_per_s = down_bytes_per_s
        self._device: DeviceReport | None = None
        self._timings: dict[ModelId, tuple[ModelSpec, LayerTiming]] = {}

    async def measure(
        self,
        specs: Sequence[ModelSpec],
        channel: aio.Channel,
        *,
        node_id: NodeId,
        display_name: str,
        addresses: tuple[str, ...],
    ) -> NodeProfile:
        """Device, one timing per model, and the link to the coordinator.

        Raises UnavailableError or DeadlineError when the coordinator does not answer.
        """
        if self._device is None:
            self._device = await self._engine.measure_device()
        for spec in specs:
            known = self._timings.get(spec.model_id)
            if known is None or known[0] != spec:
                self._timings[spec.model_id] = (spec, await self._engine.measure_layer(spec))
        rtt_ms, up_bytes_per_s, down_bytes_per_s = await self._measure_coordinator(channel)
        if self._up_bytes_per_s is not None:
            up_bytes_per_s = min(up_bytes_per_s, self._up_bytes_per_s)
        if self._down_bytes_per_s is not None:
            down_bytes_per_s = min(down_bytes_per_s, self._down_bytes_per_s)
        device = self._device
        return NodeProfile(
            node_id=node_id,
            display_name=display_name,
            device_kind=device.device_kind,
            device_name=device.device_name,
            memory_bytes=device.memory_bytes,
            memory_bytes_per_s=device.memory_bytes_per_s,
            flops_per_s=device.flops_per_s,
            compute_dtype=device.compute_dtype,
            kv_dtype=device.kv_dtype,
            coordinator_rtt_ms=rtt_ms,
            up_bytes_per_s=up_bytes_per_s,
            down_bytes_per_s=down_bytes_per_s,
            timings=tuple(self._timings[spec.model_id][1] for spec in specs),
            addresses=addresses,
        )

    async def _measure_coordinator(self, channel: aio.Channel) -> tuple[float, float, float]:
        """(smallest round trip in ms, bytes/s up, bytes/s down)."""
        stub = control_pb2_grpc.ControlServiceStub(channel)

        async def timed(up_bytes: int, down_bytes: int) -> float:
            request = control_pb2.ProbeRequest(padding=bytes(up_bytes), response_bytes=down_bytes)
            start_s = self._now_s()
            await stub.Probe(request)
            return self._now_s() - start_s

        try:
            async with asyncio.timeout(PROBE_LIMIT_S):
                await timed(1, 1)
                rtt_s = min([await timed(1, 1) for _ in range(NUM_ROUND_TRIPS)])
                up_s = await timed(BULK_BYTES, 1) - rtt_s
                down_s = await timed(1, BULK_BYTES) - rtt_s
        except TimeoutError:
            raise DeadlineError(
                f"the coordinator did not answer probes in {PROBE_LIMIT_S:g} s"
            ) from None
        except aio.AioRpcError as error:
            raise UnavailableError(f"probing the coordinator failed: {error.details()}") from None
        floor_s = 1e-5
        return rtt_s * 1e3, BULK_BYTES / max(up_s, floor_s), BULK_BYTES / max(down_s, floor_s)
