"""Who is sent where for which bytes, and whose word is taken for what they hash to."""

from random import Random

import pytest

from coordinator.core.weight_audits import AuditDraw
from coordinator.core.weight_book import Asked, FoundRange, WeightBook, WeightLimits
from plait.types import NodeId
from plait.types.weights import CHUNK_BYTES, FileRange

FILE = "f" * 64
MB = 2**20
A, B, C, D = (NodeId(name) for name in "abcd")
LIVE = frozenset((A, B, C, D))
FIRST, SECOND, THIRD = (FileRange(start * MB, MB) for start in range(3))
RIGHT, WRONG = (b"r" * 32,), (b"w" * 32,)


def book(**limits: int) -> WeightBook:
    made = WeightBook(WeightLimits(**limits))
    made.serve(FILE, 100 * MB)
    return made


def asked(node_id: NodeId, *wanted: FileRange, **more: object) -> Asked:
    return Asked(node_id=node_id, content_id=FILE, wanted=wanted, **more)  # type: ignore[arg-type]


def fetched(made: WeightBook, node_id: NodeId, one: FileRange, now_ms: int = 0) -> None:
    """`node_id` is sent to the hub for a range, and has it."""
    assert made.locate(asked(node_id, one), LIVE, now_ms).found == (FoundRange(one),)
    assert made.holds(node_id, FILE, one, RIGHT, serves=True)


def test_each_range_is_fetched_by_one_node_and_had_from_it_by_others() -> None:
    made = book(claim_bytes=MB)
    assert made.locate(asked(A, FIRST, SECOND), LIVE, 0).found == (FoundRange(FIRST),)
    assert made.locate(asked(B, FIRST, SECOND), LIVE, 0).found == (FoundRange(SECOND),)
    third = made.locate(asked(C, FIRST, SECOND), LIVE, 0)
    assert third.found == () and third.waiting_bytes == 2 * MB
    made.holds(A, FILE, FIRST, RIGHT, serves=True)
    assert made.locate(asked(C, FIRST, SECOND), LIVE, 0).found == (FoundRange(FIRST, RIGHT, (A,)),)


def test_a_claim_ends_with_its_time_its_node_and_its_release() -> None:
    made = book(claim_ms=1_000)
    made.locate(asked(A, FIRST, SECOND, THIRD), LIVE, 0)
    assert not made.locate(asked(B, FIRST), LIVE, 2_000).found, "a MiB may take a second more"
    assert made.locate(asked(B, FIRST), LIVE, 3_000).found
    assert made.locate(asked(B, SECOND), LIVE - {A}, 0).found
    made.release(A, FILE, [THIRD])
    assert made.locate(asked(C, THIRD), LIVE, 0).found


def test_a_prompt_waits_for_nobody_and_keeps_nobody_waiting() -> None:
    made = book()
    made.locate(asked(A, FIRST), LIVE, 0)
    assert made.locate(asked(B, FIRST, is_urgent=True), LIVE, 0).found == (FoundRange(FIRST),)
    assert made.locate(asked(C, SECOND, is_urgent=True), LIVE, 0).found
    assert made.locate(asked(D, SECOND), LIVE, 0).found, "it claimed nothing"
    made.holds(B, FILE, FIRST, RIGHT, serves=True)
    assert made.locate(asked(D, FIRST), LIVE, 0).found == (FoundRange(FIRST, RIGHT, (B,)),), (
        "yet it was sent, and its word counts"
    )


def test_who_asks_the_hub_already_is_given_no_more_of_it() -> None:
    assert book().locate(asked(A, FIRST, is_fetching=True), LIVE, 0).found == ()


def test_the_rarest_come_first_and_the_nearest_holder() -> None:
    made = book()
    for node_id in (A, B):
        made.locate(asked(node_id, FIRST, is_urgent=True), LIVE, 0)
        made.holds(node_id, FILE, FIRST, RIGHT, serves=True)
    fetched(made, A, SECOND)
    found = made.locate(asked(C, FIRST, SECOND, rtt_ms={A: 80.0, B: 5.0}), LIVE, 0).found
    assert [one.range for one in found] == [SECOND, FIRST]
    assert found[1].holders == (B, A)


def test_holders_about_as_near_take_turns() -> None:
    made = book()
    for one in (FIRST, SECOND, THIRD):
        fetched(made, A, one)
        made.holds(B, FILE, one, RIGHT, serves=True)
    best = [made.locate(asked(C, one), LIVE, 0).found[0].holders[0] for one in (FIRST, SECOND)]
    assert sorted(best) == [A, B]


def test_a_word_alone_is_enough_only_for_who_cannot_ask_the_hub() -> None:
    """Said without having been sent for: two have to say it."""
    made = book()
    made.holds(A, FILE, FIRST, RIGHT, serves=True)
    assert made.locate(asked(C, FIRST), LIVE, 0).found == (FoundRange(FIRST),)
    assert made.locate(asked(D, FIRST, can_fetch=False), LIVE, 0).found == (
        FoundRange(FIRST, RIGHT, (A,)),
    )
    made.holds(B, FILE, FIRST, RIGHT, serves=True)
    assert made.locate(asked(D, FIRST), LIVE, 0).found[0].hashes == RIGHT


def test_who_took_a_range_from_a_neighbour_confirms_nothing() -> None:
    made = book()
    made.holds(A, FILE, FIRST, RIGHT, serves=True)
    assert made.locate(asked(B, FIRST, can_fetch=False), LIVE, 0).found
    assert made.holds(B, FILE, FIRST, RIGHT, serves=True)
    assert made.locate(asked(C, FIRST), LIVE, 0).found == (FoundRange(FIRST),)
    assert set(made.locate(asked(D, FIRST, can_fetch=False), LIVE, 0).found[0].holders) == {A, B}


def test_what_nobody_holds_is_missing_for_who_cannot_fetch() -> None:
    answer = book().locate(asked(A, FIRST, SECOND, can_fetch=False), LIVE, 0)
    assert answer.found == () and answer.missing_bytes == 2 * MB


def test_words_that_differ_are_believed_by_nobody_until_the_coordinator_looked() -> None:
    made = book()
    fetched(made, A, FIRST)
    fetched(made, B, SECOND)
    made.holds(B, FILE, FIRST, WRONG, serves=True)
    assert made.disputed() == ((FILE, FIRST),)
    assert made.locate(asked(C, FIRST, can_fetch=False), LIVE, 0).found == ()
    assert made.settle(FILE, FIRST, RIGHT) == (B,)
    assert made.disputed() == ()
    assert made.locate(asked(C, FIRST), LIVE, 0).found == (FoundRange(FIRST, RIGHT, (A,)),)
    assert made.locate(asked(C, SECOND), LIVE, 0).found == (FoundRange(SECOND),), "nor its others"
    assert not made.holds(B, FILE, THIRD, RIGHT, serves=True)


def test_against_the_coordinators_own_look_no_word_counts() -> None:
    made = book()
    made.settle(FILE, FIRST, RIGHT)
    assert not made.holds(A, FILE, FIRST, WRONG, serves=True)
    assert made.locate(asked(C, FIRST), LIVE, 0).found == (FoundRange(FIRST),)


def test_one_accuser_sends_others_elsewhere_and_two_end_it() -> None:
    made = book(avoid_ms=1_000)
    fetched(made, A, FIRST)
    made.holds(B, FILE, FIRST, RIGHT, serves=True)
    made.rejected(C, A, FILE, FIRST, 0)
    assert made.locate(asked(D, FIRST), LIVE, 10).found[0].holders == (B,)
    assert made.locate(asked(B, FIRST), LIVE, 10).found[0].holders == (A,), "the only other one"
    assert A in made.locate(asked(D, FIRST), LIVE, 1_010).found[0].holders
    made.rejected(C, A, FILE, FIRST, 2_000)
    made.rejected(D, A, FILE, FIRST, 2_000)
    assert made.locate(asked(NodeId("e"), FIRST, avoid=frozenset({B})), LIVE, 2_001).found == (
        FoundRange(FIRST),
    )


def test_who_accuses_everybody_is_not_heard() -> None:
    made = book()
    others = [NodeId(f"n{number}") for number in range(6)]
    made.settle(FILE, FIRST, RIGHT)
    for other in others:
        made.holds(other, FILE, FIRST, RIGHT, serves=True)
        made.rejected(C, other, FILE, FIRST, 0)
    found = made.locate(asked(D, FIRST), LIVE | set(others), 1).found[0]
    assert found.holders == (*others[3:],)


def test_a_whole_file_is_any_range_of_it_once_its_hash_is_known() -> None:
    made = book()
    made.holds_whole(A, FILE)
    assert made.locate(asked(B, FIRST), LIVE, 0).found == (FoundRange(FIRST),)
    made.settle(FILE, SECOND, RIGHT)
    assert made.locate(asked(B, SECOND), LIVE, 0).found == (FoundRange(SECOND, RIGHT, (A,)),)
    made.forget(A, FILE)
    assert made.locate(asked(B, SECOND), LIVE, 0).found == (FoundRange(SECOND),)


def test_ranges_that_cannot_be_and_too_many_of_them_are_not_remembered() -> None:
    made = book(ranges_max=1)
    assert not made.holds(A, FILE, FileRange(100 * MB, 1), RIGHT, serves=True)
    assert not made.holds(A, FILE, FIRST, (*RIGHT, *RIGHT), serves=True), "a hash too many"
    assert made.holds(A, FILE, FIRST, RIGHT, serves=True)
    assert not made.holds(A, FILE, SECOND, RIGHT, serves=True)


def test_audits_cost_a_share_of_what_was_fetched_and_fall_anywhere() -> None:
    draw = AuditDraw(Random(1), share=1 / 50)
    drawn = []
    for number in range(1_000):
        held = FileRange(number * 2 * CHUNK_BYTES, 2 * CHUNK_BYTES)
        audit = draw.fetched(A, FILE, held, (b"1" * 32, b"2" * 32))
        drawn += [audit] if audit is not None else []
    assert len(drawn) == 40, "one chunk in fifty"
    assert {audit.chunk for audit in drawn} == {0, 1}
    places = [audit.range.start // (2 * CHUNK_BYTES) % 25 for audit in drawn]
    assert len(set(places)) > 10


@pytest.mark.parametrize("size", [1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_chunks_cover_a_range(size: int) -> None:
    whole = FileRange(7, size)
    chunks = list(whole.chunks())
    assert len(chunks) == whole.num_chunks
    assert chunks == [whole.chunk(index) for index in range(whole.num_chunks)]
    assert sum(chunk.size for chunk in chunks) == size and chunks[-1].end == whole.end
