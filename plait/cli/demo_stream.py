"""One question to a local network, streamed over the gRPC door."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc

from plait.cli.demo_view import route_text
from plait.errors import ServiceError
from plait.types import ModelId
from plait.wire.codec import finish_reason_from_proto
from plait.wire.status import error_from_rpc
from plait.wire.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc

if TYPE_CHECKING:
    from plait.cli.local_network import LocalNetwork

ANSWER_S: Final = 300.0


@dataclass(slots=True)
class Answer:
    """The figures of one answer, filled while it streams."""

    route: str = ""
    finish_reason: str = ""
    completion_tokens: int = 0
    ttft_ms: float = 0.0
    total_ms: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """After the first token."""
        decode_ms = self.total_ms - self.ttft_ms
        return 1_000 * (self.completion_tokens - 1) / decode_ms if decode_ms > 0 else 0.0


def stream_answer(
    network: "LocalNetwork", model_id: ModelId, prompt: str, max_tokens: int, answer: Answer
) -> Iterator[str]:
    """Pieces of the answer as they come; `answer` is complete at the end. Greedy."""
    request = gateway_pb2.GenerateRequest(
        model_id=model_id,
        chat=gateway_pb2.Chat(messages=[gateway_pb2.ChatMessage(role="user", content=prompt)]),
        max_tokens=max_tokens,
        sampling=common_pb2.SamplingParams(temperature=0.0),
    )
    stub = gateway_pb2_grpc.GatewayServiceStub(network.channel)
    began_s = time.perf_counter()
    try:
        for event in stub.Generate(request, metadata=network.metadata, timeout=ANSWER_S):
            match event.WhichOneof("event"):
                case "routed":
                    hops = event.routed.hops
                    answer.route = route_text(
                        [(h.display_name or h.node_id, h.span.start, h.span.end) for h in hops]
                    )
                case "delta":
                    if not answer.ttft_ms:
                        answer.ttft_ms = 1_000 * (time.perf_counter() - began_s)
                    yield event.delta.text
                case "finished":
                    _finish(answer, event.finished, began_s)
                case _:
                    pass
    except grpc.RpcError as error:
        raise error_from_rpc(error) from error


def _finish(answer: Answer, finished: gateway_pb2.Finished, began_s: float) -> None:
    if finished.reason == common_pb2.FINISH_REASON_ERROR:
        raise ServiceError(finished.status.message, reason=finished.status.reason)
    reason = finish_reason_from_proto(finished.reason)
    answer.finish_reason = str(reason) if reason is not None else "unknown"
    answer.completion_tokens = finished.completion_tokens
    answer.total_ms = 1_000 * (time.perf_counter() - began_s)
