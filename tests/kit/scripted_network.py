"""A core and two nodes behind the gateway, scripted: they answer at once, and as they are told."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.view import CountersView, ModelView, NetworkView
from coordinator.gateway.conversation import ToolUse, Turn
from coordinator.gateway.links import NodeLink
from coordinator.gateway.relay import Relay
from coordinator.gateway.tool_formats import format_of
from plait.errors import OverloadedError
from plait.types import (
    Architecture,
    FinishReason,
    LayerSpan,
    ModelId,
    ModelSpec,
    NodeId,
    PipelineId,
    Reason,
    RequestId,
    Stage,
)
from plait.wire.v1 import common_pb2, data_pb2
from tests.kit.stores import MemoryKeys

EOS_ID = 256
FIRST, LAST = NodeId("nfirst"), NodeId("nlast")
ROUTE = (Stage(FIRST, 1, LayerSpan(0, 2)), Stage(LAST, 1, LayerSpan(2, 4)))
API_KEY = "plait-test-key"


def tiny_spec(name: str = "tiny", *, context_tokens_max: int = 4096) -> ModelSpec:
    return ModelSpec(
        model_id=ModelId(name),
        architecture=Architecture.LLAMA,
        num_layers=4,
        hidden_size=8,
        intermediate_size=16,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        vocab_size=257,
        context_tokens_max=context_tokens_max,
        norm_eps=1e-5,
        rope_theta=10_000.0,
        eos_token_ids=(EOS_ID,),
    )


class ByteTokenizer:
    """Every byte is a token; 256 ends a sequence."""

    def encode(self, text: str, *, with_special: bool) -> list[int]:
        del with_special
        return list(text.encode())

    tool_format = format_of(None, knows_tools=False)

    def render_chat(self, turns: Sequence[Turn], tools: ToolUse | None = None) -> str:
        names = [each.name for each in tools.functions] if tools is not None else []
        shown = f"<tools>{','.join(names)}" if names else ""
        said = "".join(
            f"<{turn.role}>{turn.content}"
            + "".join(call.name + call.arguments for call in turn.calls)
            for turn in turns
        )
        return f"{shown}{said}<assistant>"

    def encode_chat(self, turns: Sequence[Turn], tools: ToolUse | None = None) -> list[int]:
        return self.encode(self.render_chat(turns, tools), with_special=False)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < EOS_ID else b""

    def token_text(self, token_id: int) -> str:
        piece = self.token_bytes(token_id).decode("utf-8", "replace")
        return piece if token_id < EOS_ID else "<eos>"


def one_key() -> MemoryKeys:
    """A key store with a client's key."""
    keys = MemoryKeys()
    keys.add(API_KEY, "test")
    return keys


class FakeViews:
    """A view source whose one model is ready or not."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.is_ready = True

    def view(self) -> NetworkView:
        missing = () if self.is_ready else ((2, 4),)
        model = ModelView(
            model_id=self.spec.model_id,
            architecture="llama",
            num_layers=4,
            context_tokens_max=self.spec.context_tokens_max,
            is_ready=self.is_ready,
            replicas_per_layer=(1, 1, 1, 1) if self.is_ready else (1, 1, 0, 0),
            missing=missing,
            missing_bytes=0,
            advice="",
        )
        return NetworkView(
            network_id="net",
            software_version="0.1.0",
            now_ms=0,
            nodes=(),
            models=(model,),
            requests=(),
            num_queued=0,
            plan=None,
            counters=CountersView(
                requests_submitted=0,
                requests_finished=0,
                requests_failed=0,
                requests_cancelled=0,
                routes_opened=0,
                routes_broken=0,
                tokens_generated=0,
                events_ignored=0,
            ),
        )


def says(text: str) -> Callable[[data_pb2.StartRequest], list[int]]:
    """A script whose whole answer is `text`, whatever was asked."""
    return lambda _: [*text.encode(), EOS_ID]


def babbles(start: data_pb2.StartRequest) -> list[int]:
    """Letters drawn by (seed, position), as a sampling last stage would; never ends by itself."""
    seed, at = start.open.sampling.seed, start.open.prompt_tokens
    num = start.open.max_new_tokens
    return [random.Random(seed * 1_000_003 + at + i).randrange(97, 123) for i in range(num)]


@dataclass
class ScriptedNetwork:
    """The core's Inbox and the nodes' ends of the links. Set `relay` after building the gateway.

    `script` gives all tokens of an answer; on a later epoch what was generated already is skipped
    by position. `refusal` ends every request with that reason; `is_holding` keeps them queued.
    `pause_after` stops each answer after so many tokens until `go` is set. Chains have the KV of
    `cached_tokens` of every prompt.
    """

    script: Callable[[data_pb2.StartRequest], list[int]] = babbles
    refusal: Reason | None = None
    is_full: bool = False
    is_holding: bool = False
    pause_after: int | None = None
    cached_tokens: int = 0
    attempts_max: int = 3
    events: list[ev.Event] = field(default_factory=list)
    closed: list[data_pb2.Close] = field(default_factory=list)
    starts: list[data_pb2.StartRequest] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    relay: Relay | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _epochs: dict[RequestId, int] = field(default_factory=dict)

    # The core.

    def post(self, event: ev.Event) -> None:
        if self.is_full and isinstance(event, ev.RequestSubmitted):
            raise OverloadedError("the coordinator is busy", reason="coordinator_busy")
        self.events.append(event)
        self.arrived.set()
        asyncio.get_running_loop().call_soon(self._handle, event)

    def of(self, kind: type) -> list[ev.Event]:
        return [event for event in self.events if isinstance(event, kind)]

    async def wait_for(self, is_true: Callable[[], bool], *, limit_s: float = 5.0) -> None:
        """Until `is_true()`; looked at whenever an event is posted, and every 5 ms."""
        async with asyncio.timeout(limit_s):
            while not is_true():
                self.arrived.clear()
                try:
                    async with asyncio.timeout(0.005):
                        await self.arrived.wait()
                except TimeoutError:
                    continue

    async def first_tokens(self, num: int, *, limit_s: float = 20.0) -> bytes:
        """The first `num` tokens of the first answer, as soon as they were asked for."""
        await self.wait_for(lambda: bool(self.starts), limit_s=limit_s)
        return bytes(self.script(self.starts[0])[:num])

    def _handle(self, event: ev.Event) -> None:
        match event:
            case ev.RequestSubmitted(request_id=request_id) if self.refusal is not None:
                self._end(request_id, FinishReason.ERROR, self.refusal)
            case ev.RequestSubmitted(request_id=request_id) if self.is_holding:
                reason = Reason(code="kv_full", message="all KV is in use")
                self._perform(fx.NotifyQueued(request_id=request_id, position=1, reason=reason))
            case ev.RequestSubmitted(request_id=request_id):
                self.open(request_id, self._epochs.get(request_id, 0) + 1)
            case ev.RouteBroke(request_id=request_id, epoch=epoch, reason=reason):
                self._close(request_id, epoch, FinishReason.ERROR)
                if epoch < self.attempts_max:
                    self.open(request_id, epoch + 1)
                else:
                    self._end(request_id, FinishReason.ERROR, reason)
            case ev.LastTokenSent(request_id=request_id, epoch=epoch, finish_reason=finish):
                self._close(request_id, epoch, finish)
                self._end(request_id, finish, None)
            case ev.RequestCancelled(request_id=request_id):
                self._close(request_id, self._epochs.get(request_id, 1), FinishReason.CANCELLED)
                self._end(request_id, FinishReason.CANCELLED, None)
            case _:
                pass

    def open(self, request_id: RequestId, epoch: int) -> None:
        self._epochs[request_id] = epoch
        self._perform(
            fx.OpenRoute(
                request_id=request_id,
                epoch=epoch,
                pipeline_id=PipelineId(epoch),
                model_id=ModelId("tiny"),
                route=ROUTE,
                addresses=(("127.0.0.1:1",), ("127.0.0.1:2",)),
                kv_tokens=64,
            )
        )

    def _close(self, request_id: RequestId, epoch: int, finish: FinishReason) -> None:
        self._perform(
            fx.CloseRoute(
                request_id=request_id,
                epoch=epoch,
                pipeline_id=PipelineId(epoch),
                route=ROUTE,
                finish_reason=finish,
            )
        )

    def _end(self, request_id: RequestId, finish: FinishReason, reason: Reason | None) -> None:
        self._perform(fx.EndRequest(request_id=request_id, finish_reason=finish, reason=reason))

    def _perform(self, effect: fx.RequestEffect) -> None:
        assert self.relay is not None
        self.relay.perform_request(effect)

    # The nodes.

    def attach(self, *nodes: NodeId) -> None:
        """Bring up the nodes' links in this process."""
        assert self.relay is not None
        for node_id in nodes or (FIRST, LAST):
            self._spawn(self._serve(self.relay.attach(node_id, 1)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, link: NodeLink) -> None:
        while (message := await link.next_message()) is not None:
            if message.WhichOneof("body") == "close":
                self.closed.append(message.close)
            else:
                self.starts.append(message.start)
                self._spawn(self._answer(message.start))

    async def _answer(self, start: data_pb2.StartRequest) -> None:
        payload = data_pb2.TicketPayload.FromString(start.open.ticket.payload)
        request_id, epoch = payload.request_id, payload.epoch
        cached_tokens = self.cached_tokens
        opened = data_pb2.Opened(request_id=request_id, epoch=epoch, cached_tokens=cached_tokens)
        self.send(opened=opened)
        position = start.open.prompt_tokens
        tokens = self.script(start)[: start.open.max_new_tokens]
        for at, token_id in enumerate(tokens):
            if at == self.pause_after:
                await self.go.wait()
            if any(c.request_id == request_id and c.epoch >= epoch for c in self.closed):
                return
            is_last = at == len(tokens) - 1
            finish = common_pb2.FINISH_REASON_UNSPECIFIED
            if token_id in start.open.stop_token_ids:
                finish = common_pb2.FINISH_REASON_STOP
            elif is_last:
                finish = common_pb2.FINISH_REASON_LENGTH
            token = data_pb2.SampledToken(
                request_id=request_id,
                epoch=epoch,
                position=position + at,
                token_id=token_id,
                finish_reason=finish,
            )
            if start.open.sampling.HasField("top_logprobs"):
                token.logprob = -0.5
                for rank in range(start.open.sampling.top_logprobs):
                    token.top_logprobs.add(token_id=97 + rank, logprob=-0.5 - rank)
            self.send(token=token)
            await asyncio.sleep(0)

    def break_first(self, message: str) -> None:
        """The first request's chain breaks at its first node, which says why."""
        submitted = self.of(ev.RequestSubmitted)[0]
        assert isinstance(submitted, ev.RequestSubmitted)
        status = common_pb2.Status(reason="engine_error", message=message)
        broken = data_pb2.Broken(request_id=submitted.request_id, epoch=1, status=status)
        self.send(broken=broken, node_id=FIRST)

    def send(
        self,
        *,
        opened: data_pb2.Opened | None = None,
        token: data_pb2.SampledToken | None = None,
        broken: data_pb2.Broken | None = None,
        node_id: NodeId = LAST,
    ) -> None:
        """Hand the relay a message as if `node_id` had sent it."""
        assert self.relay is not None
        self.relay.receive(
            node_id, data_pb2.NodeToGateway(opened=opened, token=token, broken=broken)
        )
