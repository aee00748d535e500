"""A rank other than the first: does what rank 0 says until it is gone."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Final

import torch

from node.engine.device import Device
from node.engine.held import OpenSource
from node.engine.kv_cache import KvPool
from node.engine.loader import load_stage
from node.engine.measure import measure_device, measure_layer
from node.engine.parallel.channel import LOST, RankChannel
from node.engine.parallel.commands import chunks_from, command_from, failure_of
from node.engine.parallel.joins import GroupJoins
from node.engine.parallel.rank_link import ALIVE_S, SILENT_S
from node.engine.parallel.rank_source import RankSource
from node.engine.parallel.split import Split, rank_spec
from node.engine.parallel.torch_ranks import AskedStore, TorchCommunicator
from node.engine.stage import HeldStage
from node.engine.step_plan import StepPlan
from plait import log
from plait.errors import OverloadedError, PlaitError, UnavailableError, WeightsError
from plait.models.opening import prefetch
from plait.models.tensors import whole_tensor_names
from plait.types import LayerSpan
from plait.wire.codec import (
    kv_dtype_from_proto,
    model_source_from_proto,
    model_spec_from_proto,
    span_from_proto,
)
from plait.wire.v1 import common_pb2
from plait.wire.v1 import ranks_pb2 as pb

_log = log.get("rank")
_ALIVE: Final = pb.RankReply(alive=pb.RankAlive()).SerializeToString()


@dataclass(frozen=True, slots=True)
class _Held:
    stage: HeldStage
    pool: KvPool


class Rank:
    """One member of a group. `hostname` is where the others reach it, `usable_bytes` what it may
    take of its device's memory."""

    def __init__(
        self,
        channel: RankChannel,
        device: Device,
        open_source: OpenSource,
        *,
        hostname: str,
        usable_bytes: Callable[[], int],
    ) -> None:
        self._channel = channel
        self._device = device
        self._open_source = open_source
        self._hostname = hostname
        self._usable_bytes = usable_bytes
        self._held: _Held | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        """Until rank 0 says that it leaves. Raises UnavailableError where it or another is gone."""
        teller = threading.Thread(target=self._tell, name="plait-rank-alive", daemon=True)
        teller.start()
        try:
            self._say(
                pb.RankReply(
                    hello=pb.RankHello(
                        version=version("plait"),
                        dtype=self._device.compute_dtype,
                        device_kind=self._device.kind,
                    )
                )
            )
            communicator = self._form(self._heard().welcome)
            with torch.inference_mode():
                while self._obey(self._heard(), communicator):
                    pass
        finally:
            self._ended.set()
            self._channel.close()

    def _form(self, welcome: pb.RankWelcome) -> TorchCommunicator:
        if welcome.num_ranks < 2:
            raise UnavailableError("rank 0 did not say who is who", reason=LOST)
        kv_dtype = kv_dtype_from_proto(welcome.kv_dtype)
        self._device = replace(self._device, kv_dtype=kv_dtype)
        communicator = TorchCommunicator(
            AskedStore(self._put, self._ask),
            Split(welcome.rank, welcome.num_ranks),
            self._device,
            hostname=self._hostname,
            timeout_s=welcome.timeout_ms / 1e3,
        )
        self._say(pb.RankReply(ready=pb.RankReady(kv_dtype=kv_dtype)))
        _log.info("formed", rank=welcome.rank, num_ranks=welcome.num_ranks)
        return communicator

    def _obey(self, command: pb.RankCommand, communicator: TorchCommunicator) -> bool:
        """Do one thing; whether there is more to come."""
        match command.WhichOneof("command"):
            case "layers":
                self._run_layers(command.layers, communicator)
            case "head":
                self._run_head(command.head.num_rows, communicator)
            case "tune":
                communicator.tune(command.tune.hidden_size)
            case "drop":
                self._held = None
            case "leave":
                return False
            case _:
                try:
                    self._say(self._answer(command, communicator))
                except PlaitError as error:
                    if error.code == LOST:
                        raise
                    self._say(failure_of(error))
        return True

    def _answer(self, command: pb.RankCommand, communicator: TorchCommunicator) -> pb.RankReply:
        match command.WhichOneof("command"):
            case "memory":
                return pb.RankReply(memory=pb.RankMemory(usable_bytes=self._usable_bytes()))
            case "device":
                seconds = command.device.measure_s
                report = device_report(self._device, self._usable_bytes(), seconds)
                return pb.RankReply(device=report)
            case "layer":
                spec, seconds = command.layer.spec, command.layer.measure_s
                timing = layer_report(self._device, spec, communicator.split, seconds)
                return pb.RankReply(layer=timing)
            case "load":
                return pb.RankReply(loaded=self._load(command.load, communicator))
            case _:
                raise UnavailableError("rank 0 asks for what this version does not know")

    def _load(self, load: pb.RankLoad, communicator: TorchCommunicator) -> pb.RankLoaded:
        self._held = None
        whole, span = model_spec_from_proto(load.spec), span_from_proto(load.span)
        asked = model_source_from_proto(load.source)
        split = communicator.split
        spec = rank_spec(whole, split)
        opened = self._open_source(asked)
        try:
            if opened.digest != asked.digest:
                raise WeightsError(
                    f"its weights of {asked.name} have digest {opened.digest[:12]}, rank 0's "
                    f"{(asked.digest or '')[:12]}: the ranks of a group need the same",
                    reason="group_weights",
                )
            prefetch(opened, whole_tensor_names(whole, span), lambda _done, _total: None)
            source = RankSource(opened, whole, split)
            stage = load_stage(
                source,
                spec,
                span,
                self._device,
                num_positions=load.num_positions,
                cached_rows=0,
                progress=lambda _done, _total: None,
                joins=GroupJoins(communicator, whole_vocab=whole.vocab_size),
            )
            pool = KvPool(
                num_layers=len(span),
                num_kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                num_slots=load.kv_tokens,
                device=self._device,
            )
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise OverloadedError(
                f"out of memory while it loaded its part of layers {span}", reason="memory_full"
            ) from error
        finally:
            opened.close()
        self._held = _Held(stage, pool)
        return pb.RankLoaded(
            digest=opened.digest,
            shared_digest=source.shared_digest,
            weight_bytes=stage.weight_bytes,
            read_bytes=opened.read_bytes,
        )

    def _run_layers(self, layers: pb.RankLayers, communicator: TorchCommunicator) -> None:
        held = self._require_held()
        rows = self._room(layers.num_rows)
        communicator.broadcast(rows)
        plan = StepPlan(
            chunks_from(layers),
            held.pool,
            held.stage.rotations.tables,
            num_heads=held.stage.spec.num_heads,
            rows_min=layers.num_rows,
            gather_decodes=self._device.kind == "cuda",
        )
        span = LayerSpan(layers.span.start, layers.span.end)
        held.stage.run_layers(rows, span, plan)

    def _run_head(self, num_rows: int, communicator: TorchCommunicator) -> None:
        held = self._require_held()
        assert held.stage.head is not None, "rank 0 asked for a head"
        held.stage.head(self._room(num_rows))

    def _require_held(self) -> _Held:
        if self._held is None:
            raise UnavailableError("rank 0 asks for a step before anything is held", reason=LOST)
        return self._held

    def _room(self, num_rows: int) -> torch.Tensor:
        """For rows that rank 0 broadcasts: (num_rows, hidden)."""
        width = self._require_held().stage.spec.hidden_size
        return torch.empty(
            (num_rows, width), dtype=self._device.dtype, device=self._device.torch_device
        )

    def _heard(self) -> pb.RankCommand:
        """The next command that is more than a sign of life."""
        while True:
            command = command_from(self._channel.receive(SILENT_S))
            if command.WhichOneof("command") != "alive":
                return command

    def _put(self, key: str, value: bytes) -> None:
        self._say(pb.RankReply(put=pb.RankStored(key=key, value=value)))

    def _ask(self, key: str) -> bytes:
        self._say(pb.RankReply(ask=pb.RankStoreAsked(key=key)))
        return self._heard().stored.value

    def _say(self, reply: pb.RankReply) -> None:
        self._channel.send(reply.SerializeToString())

    def _tell(self) -> None:
        while not self._ended.wait(ALIVE_S):
            try:
                self._channel.send(_ALIVE)
            except UnavailableError:
                return


def device_report(device: Device, memory_bytes: int, measure_s: float) -> pb.RankDeviceReport:
    """What this rank's device can do."""
    report = measure_device(device, memory_bytes, budget_s=measure_s)
    return pb.RankDeviceReport(
        memory_bytes_per_s=report.memory_bytes_per_s, flops_per_s=report.flops_per_s
    )


def layer_report(
    device: Device, spec: common_pb2.ModelSpec, split: Split, measure_s: float
) -> pb.RankLayerReport:
    """Times of this rank's part of one layer of the whole model `spec`."""
    own = rank_spec(model_spec_from_proto(spec), split)
    timing = measure_layer(device, own, budget_s=measure_s)
    return pb.RankLayerReport(
        decode_layer_ms=timing.decode_layer_ms,
        decode_layer_ms_per_extra=timing.decode_layer_ms_per_extra,
        prefill_layer_ms_per_token=timing.prefill_layer_ms_per_token,
        head_ms=timing.head_ms,
        step_overhead_ms=timing.step_overhead_ms,
        embed_ms=timing.embed_ms,
    )
