"""What the operator can read afterwards: news is noted, routine is not, the oldest goes first."""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.shell.chronicle import Chronicle, NotedEvents, NotedNodes, NotedRequests
from plait.clock import ManualClock
from plait.types import FinishReason, LayerSpan, ModelId, NodeId, Reason, RequestId
from tests.unit.shell.fakes import LOAD

A, B = NodeId("a"), NodeId("b")
ASSIGN = fx.AssignSpan(
    node_id=A,
    incarnation=1,
    epoch=1,
    model_id=ModelId("m"),
    span=LayerSpan(0, 10),
    kv_tokens_min=16,
    reason="it is the fastest",
)


class Recorded:
    """Stands in for the journal and both actors."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def append(self, now_ms: int, event: ev.Event) -> None:
        self.seen.append(event)

    def perform_node(self, effect: fx.NodeEffect) -> None:
        self.seen.append(effect)

    def perform_request(self, effect: fx.RequestEffect) -> None:
        self.seen.append(effect)


def attached(node_id: NodeId) -> ev.NodeAttached:
    return ev.NodeAttached(node_id=node_id, incarnation=1, display_name="x", addresses=())


def test_a_nodes_story_is_told_and_passed_on() -> None:
    chronicle, inner = Chronicle(ManualClock()), Recorded()
    events, nodes = NotedEvents(chronicle, inner), NotedNodes(chronicle, inner)
    heartbeat = ev.NodeReported(node_id=A, incarnation=1, load=LOAD)
    failed = ev.NodeLoadFailed(
        node_id=A, incarnation=1, epoch=1, reason=Reason(code="x", message="no such file")
    )
    broke = ev.HopBroke(node_id=B, neighbour_id=A, reason="reset")
    events.append(0, attached(A))
    nodes.perform_node(ASSIGN)
    for event in (heartbeat, failed, broke, attached(B)):
        events.append(0, event)
    assert inner.seen == [attached(A), ASSIGN, heartbeat, failed, broke, attached(B)]
    entries, total = chronicle.page(offset=0, limit=10, node_id="a")
    assert total == 4
    assert [entry.text for entry in entries] == [
        "has lost its stream to its neighbour: reset",
        "could not load: no such file",
        "is to load layers 0\u20139 of m: it is the fastest",
        "has joined",
    ]
    assert [e.node_id for e in chronicle.page(offset=0, limit=10, kind="hop")[0]] == ["b"]
    assert [e.node_id for e in chronicle.page(offset=4, limit=1)[0]] == ["a"]


def test_requests_are_noted_where_they_fail() -> None:
    chronicle = Chronicle(ManualClock())
    requests = NotedRequests(chronicle, Recorded())
    ended = fx.EndRequest(request_id=RequestId("r"), finish_reason=FinishReason.STOP, reason=None)
    reason = Reason(code="node_lost", message="lab-4090 has gone")
    lost = fx.EndRequest(request_id=RequestId("s"), finish_reason=FinishReason.ERROR, reason=reason)
    requests.perform_request(ended)
    requests.perform_request(lost)
    entries, _ = chronicle.page(offset=0, limit=10)
    assert [(e.request_id, e.text) for e in entries] == [("s", "has failed: lab-4090 has gone")]


def test_the_oldest_entries_go_first_and_numbers_go_on() -> None:
    chronicle = Chronicle(ManualClock(), entries_max=3)
    events = NotedEvents(chronicle, Recorded())
    for number in range(5):
        events.append(0, attached(NodeId(f"n{number}")))
    entries, total = chronicle.page(offset=0, limit=10)
    assert total == 3
    assert [(e.number, e.node_id) for e in entries] == [(5, "n4"), (4, "n3"), (3, "n2")]
