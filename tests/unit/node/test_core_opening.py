"""How a request is opened on a stage, as stories."""

import pytest

from node.core import effects as ef
from node.core import events as ev
from node.core.messages import (
    Broken,
    Close,
    Opened,
    StageOpen,
    StatusCode,
)
from node.core.prefixes import cache_path
from node.core.state import Limits
from plait.types import LayerSpan, Reason, TicketStage
from tests.unit.node.story import (
    ROW,
    SOURCE,
    SPEC,
    A,
    B,
    C,
    Story,
    broken_code,
    only,
    opened,
    rid,
    sent,
    stages,
    to_gateway,
)

FULL = StatusCode.RESOURCE_EXHAUSTED


def test_a_middle_stage_dials_reserves_and_passes_the_open_on() -> None:
    story = Story(1)
    first = story.tell(ev.OpenReceived(A, opened(1)))
    assert first == [ef.Dial(C, ("c:1",)), ef.ReserveKv(opened(1), cache_path(opened(1), SPEC))]
    assert sent(story.tell(ev.KvReserved(rid(), 1)), StageOpen) == [(C, opened(1))]


def test_the_last_stage_says_opened_and_dials_the_first_for_the_ring() -> None:
    story = Story(2)
    effects = story.open()
    assert only(effects, ef.Dial) == [ef.Dial(A, ("a:1",))]
    assert to_gateway(effects, Opened) == [Opened(request_id=rid(), epoch=1)]


def test_the_first_stage_sends_the_open_ahead_of_all_prefill_chunks() -> None:
    story = Story(0, limits=Limits(prefill_chunk_tokens=3))
    effects = story.open(prompt_tokens=8)
    chunks = only(effects, ef.SubmitRows)
    assert [(c.position, c.num_tokens, c.sample) for c in chunks] == [
        (0, 3, False),
        (3, 3, False),
        (6, 2, True),
    ]
    assert [list(c.token_ids or ()) for c in chunks] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert effects.index(only(effects, ef.Send)[0]) < effects.index(chunks[0])


def test_a_prefill_chunk_never_makes_a_frame_above_the_limit() -> None:
    story = Story(0, limits=Limits(prefill_chunk_tokens=100, frame_overhead_bytes=0))
    offer = ev.ModelOffered(SPEC, SOURCE)
    story.tell(ev.ControlAttached(models=(offer,), frame_bytes_max=2 * len(ROW)))
    chunks = only(story.open(prompt_tokens=5), ef.SubmitRows)
    assert [chunk.num_tokens for chunk in chunks] == [2, 2, 1]


@pytest.mark.parametrize(
    ("kwargs", "code", "word"),
    [
        ({"model": "other"}, StatusCode.UNAVAILABLE, "span_not_held"),
        ({"prompt_tokens": 0}, StatusCode.INVALID_ARGUMENT, "prompt_too_long"),
        ({"prompt_tokens": 65}, StatusCode.INVALID_ARGUMENT, "prompt_too_long"),
        ({"prompt_tokens": 513, "kv_tokens": 9999}, StatusCode.INVALID_ARGUMENT, "prompt_too_long"),
        ({"max_new_tokens": 0}, StatusCode.INVALID_ARGUMENT, "max_new_tokens_invalid"),
    ],
)
def test_an_open_that_will_not_do_is_answered_and_reserves_nothing(
    kwargs: dict[str, object], code: StatusCode, word: str
) -> None:
    story = Story(1)
    effects = story.open(**kwargs)
    ((neighbour, broken),) = sent(effects, Broken)
    assert (neighbour, broken.code, broken.reason.code) == (A, code, word)
    assert only(effects, ef.ReserveKv) == []
    assert story.core.num_sessions == 0


def bent(*spans: tuple[int, int], names: str = "abc") -> tuple[TicketStage, ...]:
    return tuple(
        TicketStage(node_id=B if n == "b" else A, incarnation=1, span=LayerSpan(*s), addresses=())
        for n, s in zip(names, spans, strict=True)
    )


@pytest.mark.parametrize(
    "route",
    [bent((0, 2), (2, 4), names="ab"), bent((0, 2), (2, 4), (4, 6), names="aba")],
    ids=["short of the last layer", "one node twice"],
)
def test_a_route_that_no_coordinator_signs_is_denied(route: tuple[TicketStage, ...]) -> None:
    story = Story(1)
    ((_, broken),) = sent(story.tell(ev.OpenReceived(A, opened(1, route=route))), Broken)
    assert broken.code is StatusCode.PERMISSION_DENIED
    assert story.core.counters.tickets_refused == 1


def test_a_stage_runs_any_part_of_its_span_and_nothing_beyond() -> None:
    story = Story(1)
    inside = (*bent((0, 3), (3, 4), names="ab"), stages((A, B, C))[2])
    assert only(story.tell(ev.OpenReceived(A, opened(1, route=inside))), ef.ReserveKv)
    beyond = (*bent((0, 3), (3, 5), names="ab"), bent((5, 6), names="a")[0])
    effects = story.tell(ev.OpenReceived(A, opened(1, request="r2", route=beyond)))
    assert sent(effects, Broken)[0][1].reason.code == "span_not_held"


@pytest.mark.parametrize("ids", [(1, 2, 3), (1, 2, 3, 1000), (1, 2, 3, -1)])
def test_the_first_stage_checks_the_prompts_ids(ids: tuple[int, ...]) -> None:
    story = Story(0)
    effects = story.tell(ev.RequestStarted(open=opened(0), prompt_token_ids=ids))
    assert broken_code(effects) in ("prompt_invalid", "token_id_invalid")
    assert only(effects, ef.ReserveKv) == []


def test_a_refused_ticket_is_answered_to_its_sender_and_counted() -> None:
    story = Story(1)
    refused = ev.OpenRefused(
        sender=A,
        request_id=rid(),
        epoch=1,
        stage_index=1,
        code=StatusCode.PERMISSION_DENIED,
        reason=Reason(code="ticket_forged", message="..."),
    )
    ((neighbour, broken),) = sent(story.tell(refused), Broken)
    assert (neighbour, int(broken.code), broken.reason.code) == (A, 7, "ticket_forged")
    assert story.core.counters.tickets_refused == 1
    assert story.core.num_sessions == 0


def test_without_kv_the_chain_breaks_towards_gateway_and_sender() -> None:
    story = Story(1)
    story.tell(ev.OpenReceived(A, opened(1)))
    effects = story.tell(ev.KvRefused(rid(), 1, FULL, Reason(code="kv_full", message="full")))
    assert broken_code(effects) == "kv_full"
    assert [n for n, _ in sent(effects, Broken)] == [A]
    assert sent(effects, Close) == [], "the next stage was never opened"


def test_the_same_attempt_is_not_opened_twice_and_the_first_goes_on() -> None:
    story = Story(1)
    story.open()
    ((_, broken),) = sent(story.open(), Broken)
    assert broken.reason.code == "ticket_replayed"
    assert story.core.num_sessions == 1
    assert only(story.rows(0, 4), ef.SubmitRows)


def test_a_newer_attempt_closes_the_older_one_all_along_its_chain() -> None:
    story = Story(1)
    story.open()
    effects = story.open(epoch=2)
    assert [(n, c.epoch) for n, c in sent(effects, Close)] == [(C, 1)]
    assert only(effects, ef.ReleaseKv) == [ef.ReleaseKv(rid(), 1)]
    assert only(effects, ef.ReserveKv)
    story.rows(0, 4, epoch=1)
    assert story.core.counters.frames_late == 1
    assert only(story.rows(0, 4, epoch=2), ef.SubmitRows)


def test_an_older_attempt_comes_too_late() -> None:
    story = Story(1)
    story.open(epoch=2)
    assert story.open(epoch=1) == []
    assert story.core.counters.frames_late == 1
