"""Which chunk is asked of whom, and what becomes of those that fail."""

import hashlib
from pathlib import Path

from node.core.weight_errand import ChunkFetch, Errand, ErrandLimits
from plait.models.chunks import kept_hashes
from plait.models.parts import RangeParts
from plait.models.pieces import PieceFolder
from plait.types import NodeId
from plait.types.weights import CHUNK_BYTES, FileRange

A, B = NodeId("a"), NodeId("b")
LONG = FileRange(0, 3 * CHUNK_BYTES)
SHORT = FileRange(LONG.end, 10)
HASH = (b"h" * 32,)


def errand(*wanted: FileRange, **limits: int) -> Errand:
    return Errand.of(wanted, ErrandLimits(**limits))


def all_fetches(made: Errand, now_ms: int = 0) -> list[ChunkFetch]:
    found = []
    while (fetch := made.next_fetch(now_ms)) is not None:
        found.append(fetch)
    return found


def test_chunks_are_shared_among_holders_within_bounds() -> None:
    made = errand(LONG, SHORT, chunks_max=4, chunks_per_holder_max=2)
    made.located(LONG, HASH * 3, [A, B], set())
    made.located(SHORT, HASH, [A], set())
    fetches = all_fetches(made)
    assert [f.holder for f in fetches] == [A, B, A]
    assert made.num_under_way == 3, "the short one's only holder has two under way"
    assert not made.arrived(fetches[0])
    assert all_fetches(made) == [ChunkFetch(SHORT, 0, A)]


def test_a_range_is_done_with_its_last_chunk_and_the_errand_with_its_last_range() -> None:
    made = errand(LONG)
    assert not made.located(LONG, HASH * 3, [A], {0, 2}), "two chunks were here from before"
    (fetch,) = all_fetches(made)
    assert fetch.chunk == 1 and not made.is_done
    assert made.arrived(fetch) and made.is_done


def test_wrong_bytes_end_a_holder_at_once_and_the_chunk_goes_to_another() -> None:
    made = errand(LONG, chunks_max=2)
    made.located(LONG, HASH * 3, [A, B], set())
    first, second = all_fetches(made)
    made.rejected(first)
    assert list(made.avoid) == [A]
    assert [f.holder for f in all_fetches(made)] == [B]
    made.arrived(second)


def test_a_range_without_holders_is_wanted_again_with_what_came_of_it() -> None:
    made = errand(LONG, failures_max=1)
    made.located(LONG, HASH * 3, [A], set())
    first, second = all_fetches(made)
    made.arrived(first)
    made.failed(second)
    assert made.wanted == (LONG,) and not made.has_near
    assert made.sent_to_hub([LONG]) == (LONG,) and made.is_at_hub
    made.hub_failed([LONG])
    assert made.wanted == (LONG,)


def test_a_chunk_that_arrives_after_its_holder_failed_leaves_nobody_waiting() -> None:
    """It had come, and was compared while the others were cut off."""
    made = errand(LONG, failures_max=1)
    made.located(LONG, HASH * 3, [A], set())
    first, second = all_fetches(made)
    made.failed(second)
    assert made.has_near, "a chunk is under way"
    assert not made.arrived(first)
    assert made.wanted == (LONG,) and not made.has_near


def test_an_answer_that_comes_after_its_holders_failed_changes_nothing() -> None:
    made = errand(LONG, SHORT, failures_max=1)
    made.located(LONG, HASH * 3, [A], set())
    for fetch in all_fetches(made):
        made.failed(fetch)
    made.located(SHORT, HASH, [A], set())
    assert set(made.wanted) == {LONG, SHORT} and not made.has_near


def test_a_busy_holder_is_asked_again_a_little_later_but_not_for_ever() -> None:
    made = errand(SHORT, rest_ms=100, refusals_max=3)
    made.located(SHORT, HASH, [A], set())
    for now_ms in (0, 100, 200):
        (fetch,) = all_fetches(made, now_ms)
        made.refused(fetch, now_ms)
        assert all_fetches(made, now_ms + 50) == []
    assert list(made.avoid) == [A] and made.wanted == (SHORT,)


def test_parts_that_a_process_left_are_read_and_only_what_is_right_stays(tmp_path: Path) -> None:
    chunks = [bytes([number]) * LONG.chunk(number).size for number in range(3)]
    hashes = tuple(hashlib.sha256(chunk).digest() for chunk in chunks)
    pieces = PieceFolder(tmp_path / "ranges")
    parts = RangeParts(pieces, LONG, hashes)
    assert parts.fits(2, chunks[2]) and not parts.fits(1, chunks[2])
    assert not parts.fits(2, chunks[2] + b"x")
    parts.keep(2, chunks[2])
    parts.keep(0, chunks[0])
    again = RangeParts(pieces, LONG, hashes)
    assert again.here == {0, 2}
    again.keep(1, chunks[1])
    assert again.is_complete
    piece = again.finish()
    assert bytes(pieces.load(piece) or b"") == b"".join(chunks)
    assert kept_hashes(pieces.path(piece), LONG.size) == hashes
    assert kept_hashes(pieces.path(piece), LONG.size) == hashes, "and from beside it"


def test_what_neighbours_gave_from_the_first_byte_on_is_the_hubs_start(tmp_path: Path) -> None:
    chunks = [bytes([number]) * LONG.chunk(number).size for number in range(3)]
    hashes = tuple(hashlib.sha256(chunk).digest() for chunk in chunks)
    pieces = PieceFolder(tmp_path / "ranges")
    parts = RangeParts(pieces, LONG, hashes)
    parts.keep(0, chunks[0])
    parts.keep(2, chunks[2])
    parts.hand_over()
    assert pieces.part_bytes(LONG.start, LONG.end) == CHUNK_BYTES
