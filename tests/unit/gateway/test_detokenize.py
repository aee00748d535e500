"""Text comes out in whole characters and without any of a stop string, however it is cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.gateway.detokenize import StopScanner, Utf8Stream


def test_a_character_waits_for_its_last_byte() -> None:
    stream = Utf8Stream()
    fox = "🦊".encode()
    assert [stream.feed(bytes([byte])) for byte in fox] == ["", "", "", "🦊"]
    assert stream.flush() == ""


def test_an_incomplete_end_and_stray_bytes_become_one_mark_each() -> None:
    stream = Utf8Stream()
    assert stream.feed(b"a\xffb") == "a\ufffdb"
    assert stream.feed(b"\xe2\x82") == ""
    assert stream.flush() == "\ufffd"


@settings(deadline=None)
@given(st.text(max_size=40), st.data())
def test_any_cut_gives_the_text(text: str, data: st.DataObject) -> None:
    content = text.encode("utf-8", "replace")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    stream = Utf8Stream()
    parts = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    out = [stream.feed(part) for part in parts]
    assert "".join(out) + stream.flush() == content.decode()


def test_a_stop_string_across_pieces_never_leaks() -> None:
    scanner = StopScanner(["STOP"])
    given = ["abS", "TO", "xST", "OP", "later"]
    said = ""
    for piece in given:
        scanned = scanner.feed(piece)
        said += scanned.text
        if scanned.is_stopped:
            break
    assert said == "abSTOx"


def test_the_first_of_several_stops_wins_and_an_empty_one_is_refused() -> None:
    scanned = StopScanner(["xyz", "yz", "q"]).feed("ab xyz q")
    assert (scanned.text, scanned.is_stopped) == ("ab ", True)
    with pytest.raises(ValueError, match="empty"):
        StopScanner([""])


@settings(deadline=None)
@given(
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=4), max_size=12),
)
def test_scanning_piecewise_equals_searching_the_whole(stops: list[str], pieces: list[str]) -> None:
    scanner, said, is_stopped, fed = StopScanner(stops), "", False, ""
    for piece in pieces:
        fed += piece
        scanned = scanner.feed(piece)
        said += scanned.text
        is_stopped = scanned.is_stopped
        if is_stopped:
            break
    found = [at for at in (fed.find(stop) for stop in stops) if at >= 0]
    assert is_stopped == bool(found)
    if found:
        assert said == fed[: min(found)]
    else:
        assert said + scanner.flush() == fed
        assert len(scanner.held) < max(map(len, stops))
