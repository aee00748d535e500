"""Whatever strangers send, a node's core stays whole, and an honest request beside it is served."""

from hypothesis import given, settings
from hypothesis import strategies as st

from node.core import effects as ef
from node.core import events as ev
from node.core.messages import Activations, Broken, StatusCode, Token
from plait.types import DType, FinishReason, NodeId, Reason, RequestId
from tests.unit.node.story import ROW, A, B, C, Outcome, Story, only, opened, sent

NODES = st.sampled_from([A, B, C, NodeId("stranger")])
REQUESTS = st.sampled_from(["r1", "r2", "", "x" * 64]).map(RequestId)
EPOCHS = st.sampled_from([0, 1, 2, 3, 2**32 - 1])
POSITIONS = st.sampled_from([0, 1, 3, 4, 5, 63, 64, 2**32 - 1])
REASON = Reason(code="noise", message="noise")


def _rows() -> st.SearchStrategy[ev.Event]:
    rows = st.builds(
        Activations,
        REQUESTS,
        EPOCHS,
        POSITIONS,
        st.sampled_from([0, 1, 2, 4, 2**32 - 1]),
        st.sampled_from([b"", b"\0", ROW, ROW * 2, ROW * 4, ROW[:-1]]),
        sample=st.booleans(),
        dtype=st.sampled_from([None, *DType]),
    )
    return st.builds(ev.ActivationsReceived, NODES, rows)


def _tokens() -> st.SearchStrategy[ev.Event]:
    token = st.builds(
        Token,
        REQUESTS,
        EPOCHS,
        POSITIONS,
        st.sampled_from([0, 7, 999, 1000, 2**32 - 1]),
        finish_reason=st.sampled_from([None, *FinishReason]),
    )
    return st.builds(ev.TokenReceived, NODES, token)


def _opens() -> st.SearchStrategy[ev.Event]:
    order = st.builds(
        opened,
        st.just(1),
        request=st.sampled_from(["r1", "r2"]),
        epoch=st.integers(1, 4),
        kv_tokens=st.sampled_from([1, 4, 64]),
        prompt_tokens=st.sampled_from([0, 1, 4, 65]),
        max_new_tokens=st.sampled_from([0, 1, 8]),
        model=st.sampled_from(["tiny", "other"]),
    )
    return st.builds(ev.OpenReceived, NODES, order)


def _ends() -> st.SearchStrategy[ev.Event]:
    broken = st.builds(
        Broken,
        request_id=REQUESTS,
        epoch=EPOCHS,
        stage_index=st.integers(0, 9),
        node_id=NODES,
        code=st.sampled_from(StatusCode),
        reason=st.just(REASON),
    )
    return st.one_of(
        st.builds(
            ev.CloseReceived,
            sender=st.one_of(st.none(), NODES),
            request_id=REQUESTS,
            epoch=EPOCHS,
            reason=st.sampled_from(FinishReason),
        ),
        st.builds(ev.BrokenReceived, NODES, broken),
        st.builds(
            ev.FrameRejected,
            sender=st.one_of(st.none(), NODES),
            request_id=st.one_of(st.none(), REQUESTS),
            epoch=EPOCHS,
            reason=st.just(REASON),
        ),
        st.builds(ev.KvReserved, REQUESTS, EPOCHS),
        st.builds(ev.KvRefused, REQUESTS, EPOCHS, st.sampled_from(StatusCode), st.just(REASON)),
        st.builds(ev.SendRefused, neighbour_id=NODES, request_id=REQUESTS, epoch=EPOCHS),
        st.builds(ev.LinkUp, NODES),
        st.builds(ev.LinkDown, NODES, st.just("reset")),
        st.just(ev.Ticked()),
    )


NOISE = st.lists(st.one_of(_rows(), _tokens(), _opens(), _ends()), max_size=40)
STRANGERS = st.lists(st.one_of(_rows(), _tokens(), _ends()), max_size=40)


class Ledger:
    """Performs reservations as an engine would, and finds what the core forgot."""

    def __init__(self) -> None:
        self.open: dict[RequestId, int] = {}

    def take(self, effects: list[ef.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ef.ReserveKv):
                assert effect.open.request_id not in self.open, "the older attempt was not freed"
                self.open[effect.open.request_id] = effect.open.epoch
            elif isinstance(effect, ef.ReleaseKv):
                if self.open.get(effect.request_id, effect.epoch + 1) <= effect.epoch:
                    del self.open[effect.request_id]
            elif isinstance(effect, ef.SubmitRows):
                assert self.open.get(effect.request_id) == effect.epoch, "rows without KV"


@settings(max_examples=300, deadline=None)
@given(NOISE)
def test_noise_never_crashes_and_no_kv_is_forgotten(noise: list[ev.Event]) -> None:
    story, ledger = Story(1), Ledger()
    for event in noise:
        effects = story.tell(event)
        ledger.take(effects)
        for reserve in only(effects, ef.ReserveKv):
            ledger.take(story.tell(ev.KvReserved(reserve.open.request_id, reserve.open.epoch)))
        assert len(ledger.open) == story.core.num_sessions
    ledger.take(story.tell(ev.LinkDown(A, "end")))
    assert ledger.open == {}
    assert story.core.num_sessions == 0


@settings(max_examples=200, deadline=None)
@given(STRANGERS, st.integers(0, 3))
def test_a_stranger_cannot_touch_an_honest_request(noise: list[ev.Event], split: int) -> None:
    """The same noise, but under other names or from a node outside of the chain."""
    story = Story(1)
    story.open(request="honest")
    for event in noise[: len(noise) * split // 3]:
        if not isinstance(event, ev.LinkDown):
            story.tell(event)
    (work,) = only(story.rows(0, 4, request="honest"), ef.SubmitRows)
    assert (work.position, work.num_tokens) == (0, 4)
    for event in noise[len(noise) * split // 3 :]:
        if not isinstance(event, ev.LinkDown):
            story.tell(event)
    outcome = Outcome(0, 4, request="honest", hidden=b"h")
    assert [n for n, _ in sent(story.step(outcome), Activations)] == [C]
    assert only(story.rows(4, request="honest"), ef.SubmitRows)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=30))
def test_positions_only_ever_rise(order: list[int]) -> None:
    """Duplicates and reorders of single rows: each position reaches the engine once, in order."""
    story = Story(1)
    story.open()
    submitted: list[int] = []
    for position in order:
        submitted += [work.position for work in only(story.rows(position), ef.SubmitRows)]
    assert submitted == list(range(len(submitted)))
    assert (story.core.num_sessions == 0) == _first_gap(order)


def _first_gap(order: list[int]) -> bool:
    """A naive twin: whether a row ever came before the one it follows."""
    expected = 0
    for position in order:
        if position > expected:
            return True
        if position == expected:
            expected += 1
    return False
