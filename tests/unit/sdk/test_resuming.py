"""When a lost call is made again, and with what."""

import random

import grpc
from grpc import aio

from plait.sdk.fold import Fold
from plait.sdk.requests import build_request
from plait.sdk.resuming import RESUME_S, Reach, Resumption
from plait.wire.status import REASON_KEY
from plait.wire.v1 import gateway_pb2


def failed(code: grpc.StatusCode, reason: str | None = None, details: str = "") -> aio.AioRpcError:
    """A call that ended so."""
    said = aio.Metadata((REASON_KEY, reason)) if reason is not None else aio.Metadata()
    return aio.AioRpcError(code, aio.Metadata(), said, details=details)


LOST = failed(grpc.StatusCode.UNAVAILABLE)


class Rig:
    def __init__(self, *, is_proven: bool = True, timeout_s: float = 600.0) -> None:
        self.now_s = 0.0
        self.fold = Fold()
        self.resumption = Resumption(
            build_request("hi", {}),
            timeout_s=timeout_s,
            reach=Reach(is_proven),
            now_s=lambda: self.now_s,
            rng=random.Random(1),
        )

    def wait_s(self, error: grpc.RpcError = LOST) -> float | None:
        return self.resumption.wait_s(error, self.fold)


def test_a_lost_call_is_made_again_with_what_has_come() -> None:
    rig = Rig()
    name = rig.resumption.request.request_id
    assert len(name) == 24, "drawn by the client, so that it can ask again"
    assert not rig.resumption.request.HasField("resume")
    for event in (
        gateway_pb2.GenerateEvent(routed=gateway_pb2.Routed(epoch=3)),
        gateway_pb2.GenerateEvent(delta=gateway_pb2.TextDelta(text="a", token_ids=[7])),
        gateway_pb2.GenerateEvent(delta=gateway_pb2.TextDelta(text="b", token_ids=[8, 9])),
    ):
        rig.fold.add(event)
    assert rig.wait_s() is not None
    request = rig.resumption.request
    assert (request.request_id, request.prompt) == (name, "hi")
    assert (request.resume.epoch, list(request.resume.token_ids)) == (3, [7, 8, 9])
    assert request.resume.num_deltas == 2


def test_what_the_network_says_is_final_but_for_its_own_stop() -> None:
    rig = Rig()
    assert rig.wait_s(failed(grpc.StatusCode.UNAVAILABLE, "span_unavailable")) is None
    assert rig.wait_s(failed(grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")) is None
    assert rig.wait_s(failed(grpc.StatusCode.DEADLINE_EXCEEDED)) is None
    assert rig.wait_s(failed(grpc.StatusCode.UNAVAILABLE, "coordinator_stopping")) is not None
    assert rig.wait_s(failed(grpc.StatusCode.INTERNAL, details="Received RST_STREAM")) is not None


def test_what_the_other_side_cancels_without_a_word_is_lost_and_our_own_end_is_final() -> None:
    rig, cancelled = Rig(), grpc.StatusCode.CANCELLED
    assert rig.wait_s(failed(cancelled, details="CANCELLED")) is not None
    assert rig.wait_s(failed(cancelled, "cancelled", details="CANCELLED")) is None
    assert rig.wait_s(failed(cancelled, details="Stream removed (Channel closed!)")) is None


def test_a_network_never_reached_is_not_waited_for() -> None:
    rig = Rig(is_proven=False)
    assert rig.wait_s() is None
    rig.resumption.heard()
    assert rig.wait_s() is not None


def test_waits_grow_to_a_bound_and_end_with_the_patience_or_the_deadline() -> None:
    rig = Rig()
    waits: list[float] = []
    while (wait_s := rig.wait_s()) is not None:
        waits.append(wait_s)
        rig.now_s += wait_s
    assert 0.05 <= waits[0] <= 0.1 and max(waits) <= 1.0
    assert RESUME_S - 1.0 <= rig.now_s <= RESUME_S
    rig.resumption.heard()
    assert rig.wait_s() is not None, "each loss has its own patience"
    short = Rig(timeout_s=0.01)
    assert short.wait_s() is None
