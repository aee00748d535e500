"""Malformed messages against a coordinator: what nodes may report, send up, and clients ask.

`PLAIT_FUZZ_FRAMES=100000` for a long run by hand.
"""

import contextlib
import json

from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.gateway.apis import APIS
from coordinator.gateway.door_codec import order_from_proto
from coordinator.gateway.fields import parse_object
from coordinator.gateway.generation import Generation
from coordinator.gateway.order import check_order
from coordinator.gateway.relay import Relay
from coordinator.shell.reports import Attachment, event_from_report
from node.agent.reports import ReportWriter
from node.core import effects as nef
from node.core.machines import NodeState
from node.core.messages import Broken, Opened, StatusCode, Token
from node.transport import encode
from plait.clock import ManualClock
from plait.errors import FrameError, InvalidRequestError
from plait.types import (
    FinishReason,
    HeldSpan,
    LayerSpan,
    ModelId,
    NodeId,
    PipelineId,
    Reason,
    RequestId,
    SamplingParams,
    Stage,
    TokenLogprob,
)
from plait.wire.v1 import control_pb2, data_pb2, gateway_pb2
from tests.kit.inbox import ListInbox
from tests.kit.mutator import EXAMPLES, Memory, mutants
from tests.kit.scripted_network import ByteTokenizer
from tests.unit.core.stories import IDLE, Story, only
from tests.unit.scheduler.pools import node as profile_of

SEEDS = st.integers(0, 2**32 - 1)
EVIL = NodeId("evil")
R, HONEST = RequestId("r"), RequestId("honest")
REASON = Reason(code="hop_lost", message="gone")


def _reports() -> list[bytes]:
    """What a node may say on its control stream."""
    writer = ReportWriter(1)
    span = LayerSpan(0, 10)
    held = HeldSpan(
        model_id=ModelId("tiny"),
        span=span,
        allocation_epoch=1,
        digest="d" * 64,
        weight_bytes=1,
        read_bytes=1,
        kv_tokens_max=4096,
    )
    reports = [
        writer.profiled(profile_of("evil", memory_mib=300)),
        writer.heartbeat(NodeState.SERVING, IDLE),
        writer.progress(1, "loading", 5, 10),
        writer.neighbour(NodeId("a"), None),
        writer.effect(nef.ReportSpanLoaded(held)),
        writer.effect(nef.ReportLoadFailed(1, StatusCode.NOT_FOUND, REASON)),
        writer.effect(nef.ReportHopBroken(NodeId("a"), "reset")),
        writer.effect(nef.ReportDrainAsked("sigterm", 1_000)),
        writer.effect(nef.ReportDrained()),
    ]
    return [report.SerializeToString() for report in reports]


def _ups() -> list[bytes]:
    """What a last stage may send up for its own request."""
    frames = []
    for position in (3, 4, 5):
        for finish in (None, FinishReason.LENGTH):
            top = (TokenLogprob(1, -0.5), TokenLogprob(2, -0.7))
            token = Token(R, 1, position, 97, finish_reason=finish, logprob=-0.5, top_logprobs=top)
            frames.append(encode.gateway_frame(token))
    frames.append(encode.gateway_frame(Opened(request_id=R, epoch=1)))
    broken = Broken(
        request_id=R, epoch=1, stage_index=1, node_id=EVIL, code=StatusCode.INTERNAL, reason=REASON
    )
    frames.append(encode.gateway_frame(broken))
    frames.append(encode.attach_frame(1))
    return frames


def _bodies() -> list[bytes]:
    """What clients may post, to any of the paths."""
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi \u00e9"}]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    bodies: list[dict[str, object]] = [
        {"model": "tiny", "messages": turns, "stream": True, "max_tokens": 5, "stop": ["a", "b"]},
        {"model": "tiny", "messages": turns, "tools": [tool], "tool_choice": "auto", "n": 2},
        {"model": "tiny", "messages": turns, "response_format": form, "logit_bias": {"5": 1.5}},
        {"model": "tiny", "prompt": "hello", "logprobs": 2, "echo": True, "temperature": 0.5},
        {"model": "tiny", "prompt": [[1, 2], [3]], "top_p": 0.9, "seed": 7, "best_of": 1},
        {"model": "tiny", "input": "hello", "instructions": "x", "max_output_tokens": 4},
        {"model": "tiny", "messages": turns[1:], "system": "s", "max_tokens": 9, "top_k": 3},
    ]
    return [json.dumps(body).encode() for body in bodies]


def _asks() -> list[bytes]:
    """What clients may say to the gRPC door."""
    chat = gateway_pb2.GenerateRequest(model_id="tiny", max_tokens=5, request_id="r1", stop=["x"])
    chat.chat.messages.add(role="user", content="hi")
    chat.sampling.temperature = 0.5
    chat.tools.add(name="f", parameters_json='{"type": "object"}')
    plain = gateway_pb2.GenerateRequest(model_id="tiny", prompt="hello", ignore_eos=True)
    ids = gateway_pb2.GenerateRequest(tokens=gateway_pb2.TokenIds(ids=[1, 2, 3]))
    ids.resume.epoch = 2
    ids.resume.token_ids.extend([4, 5])
    return [each.SerializeToString() for each in (chat, plain, ids)]


REPORTS, UPS, BODIES, ASKS = _reports(), _ups(), _bodies(), _asks()


def test_reports_of_a_node() -> None:
    """An honest request goes on beside them, and plans that they cause can be made."""
    memory = Memory()

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(SEEDS)
    def hear(seed: int) -> None:
        memory.count()
        story = Story()
        story.start("a", "b", "c", memory_mib=1000)
        story.join("evil")
        story.submit("honest")
        pipeline_id = story.core.state.requests[HONEST].pipeline_id
        assert pipeline_id is not None
        names = {s.node_id for s in story.core.state.pipelines[pipeline_id].route}
        assert EVIL not in names
        who = Attachment(node_id=EVIL, incarnation=1, display_name="evil", addresses=("evil:1",))
        for data in mutants(seed, REPORTS):
            try:
                event = event_from_report(who, control_pb2.NodeReport.FromString(data))
            except (DecodeError, FrameError):
                continue
            if event is not None:
                story.tell(event)
        beating = ("a", "b", "c")
        for solve in only(story.wait(1_000, beating=beating), fx.SolveAllocation)[:1]:
            story.solve(solve)
        assert story.core.state.requests[HONEST].pipeline_id == pipeline_id
        story.finish("honest")

    hear()
    memory.check("reports")


class Rig:
    """A relay with two generations, one of them carried by the node that sends nonsense."""

    def __init__(self) -> None:
        self.inbox = ListInbox()
        self.relay = Relay(
            inbox=self.inbox,
            sign=lambda payload: b"s" * 64,
            network_id="net",
            clock=ManualClock(),
            new_id=lambda: "ticket-1",
        )
        self.generations: dict[RequestId, Generation] = {}
        for request_id, node_id in ((R, EVIL), (HONEST, NodeId("good"))):
            self.relay.attach(node_id, 1)
            self._open(request_id, node_id)

    def _open(self, request_id: RequestId, node_id: NodeId) -> None:
        generation = Generation(
            request_id=request_id,
            model_id=ModelId("tiny"),
            key_id="k",
            prompt_ids=[7, 7, 8],
            max_new_tokens=10,
            sampling=SamplingParams(),
            stop=(),
            stop_token_ids=(256,),
            vocab_size=257,
            tokenizer=ByteTokenizer(),
            clock=ManualClock(),
        )
        self.generations[request_id] = generation
        self.relay.add(generation)
        self.relay.perform_request(
            fx.OpenRoute(
                request_id=request_id,
                epoch=1,
                pipeline_id=PipelineId(1),
                model_id=ModelId("tiny"),
                route=(Stage(node_id, 1, LayerSpan(0, 4)),),
                addresses=((f"{node_id}:1",),),
                kv_tokens=13,
            )
        )

    def say(self, node_id: NodeId, data: bytes) -> None:
        self.relay.receive(node_id, data_pb2.NodeToGateway.FromString(data))


def test_messages_of_a_last_stage() -> None:
    memory = Memory()

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(SEEDS)
    def hear(seed: int) -> None:
        memory.count()
        rig = Rig()
        rig.say(NodeId("good"), encode.gateway_frame(Opened(request_id=HONEST, epoch=1)))
        for data in mutants(seed, UPS):
            with contextlib.suppress(DecodeError, FrameError):
                rig.say(EVIL, data)
        rig.say(NodeId("good"), encode.gateway_frame(Token(HONEST, 1, 3, 97)))
        assert rig.generations[HONEST].generated_ids == [97]
        assert rig.generations[HONEST].finished is None
        told = [e for e in rig.inbox.events if isinstance(e, ev.RouteBroke | ev.LastTokenSent)]
        assert all(event.request_id == R for event in told)
        assert len(told) <= 1, "one route ended more than once"

    hear()
    memory.check("last stage")


def test_bodies_of_http_requests() -> None:
    memory = Memory()

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(SEEDS, st.sampled_from(APIS))
    def read(seed: int, api: object) -> None:
        memory.count()
        for body in mutants(seed, BODIES):
            for each in APIS:
                if each is api:
                    with contextlib.suppress(InvalidRequestError):
                        each.read(parse_object(body))

    read()
    memory.check("bodies")


def test_requests_at_the_grpc_door() -> None:
    memory = Memory()

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(SEEDS)
    def read(seed: int) -> None:
        memory.count()
        for data in mutants(seed, ASKS):
            with contextlib.suppress(DecodeError, InvalidRequestError):
                check_order(order_from_proto(gateway_pb2.GenerateRequest.FromString(data)))

    read()
    memory.check("door")
