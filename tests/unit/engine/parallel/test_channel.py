"""Only who knows the secret gets in, and nothing that somebody else says is heard."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore

from node.engine.parallel.channel import FRAME_BYTES_MAX, GREETING, RankChannel
from node.engine.parallel.rank_link import RankLink
from plait.errors import AuthenticationError, FrameError, PlaitError, UnavailableError
from plait.wire.v1.ranks_pb2 import RankReady, RankReply

SECRET = b"a secret of sixteen bytes or more"
WAIT_S = 10.0
Pair = tuple[RankChannel, RankChannel, socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends, and the sockets below them."""
    here, there = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(RankChannel.join, there, SECRET)
        leading = RankChannel.lead(here, SECRET)
        joined = joining.result(WAIT_S)
    yield leading, joined, here, there
    leading.close()
    joined.close()


def test_both_ends_hear_what_the_other_says(pair: Pair) -> None:
    leading, joined, _, _ = pair
    leading.send(b"one")
    leading.send(b"")
    joined.send(b"two")
    assert [joined.receive(WAIT_S), joined.receive(WAIT_S)] == [b"one", b""]
    assert leading.receive(WAIT_S) == b"two"


@pytest.mark.parametrize(
    ("lead", "join"), [(SECRET, b"another"), (b"another", SECRET), (SECRET, b"")]
)
def test_two_secrets_do_not_meet(lead: bytes, join: bytes) -> None:
    here, there = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(RankChannel.join, there, join)
        with pytest.raises(AuthenticationError, match="does not have the secret"):
            RankChannel.lead(here, lead)
        with pytest.raises((AuthenticationError, UnavailableError)):
            joining.result(WAIT_S)


def test_a_node_without_the_secret_leads_nobody() -> None:
    """It may let anybody in; it cannot prove that it knows what the rank knows."""
    here, there = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(RankChannel.join, there, SECRET)
        here.sendall(GREETING + bytes(32))
        here.recv(64)
        here.sendall(bytes(32))
        with pytest.raises(AuthenticationError, match="another secret"):
            joining.result(WAIT_S)
    here.close()


def test_what_else_answers_there_is_told_apart() -> None:
    here, there = socket.socketpair()
    with here:
        here.sendall(b"HTTP/1.1 400 Bad Request")
        with pytest.raises(AuthenticationError, match="leads no"):
            RankChannel.join(there, SECRET)


def _injected(frame: bytes) -> bytes:
    return len(b"drop").to_bytes(4, "little") + bytes(16) + b"drop"


def _changed(frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 1])


def _repeated(frame: bytes) -> bytes:
    return frame + frame


def _huge(frame: bytes) -> bytes:
    return (FRAME_BYTES_MAX + 1).to_bytes(4, "little") + frame[4:]


@pytest.mark.parametrize("spoil", [_injected, _changed, _repeated, _huge])
def test_frames_of_somebody_else_are_refused(spoil: Callable[[bytes], bytes]) -> None:
    """A man in the middle of an honest handshake, who then says something himself."""
    here, middle_here = socket.socketpair()
    middle_there, there = socket.socketpair()
    with ThreadPoolExecutor(2) as pool:
        leading = pool.submit(RankChannel.lead, here, SECRET)
        joining = pool.submit(RankChannel.join, there, SECRET)
        middle_there.sendall(middle_here.recv(4096))
        middle_here.sendall(middle_there.recv(4096))
        middle_there.sendall(middle_here.recv(4096))
        leader, joined = leading.result(WAIT_S), joining.result(WAIT_S)
    leader.send(b"step")
    middle_there.sendall(spoil(middle_here.recv(4096)))
    with pytest.raises(FrameError):
        for _ in range(2):
            joined.receive(WAIT_S)
    for end in (middle_here, middle_there):
        end.close()
    leader.close()
    joined.close()


def link_over(
    channel: RankChannel, *, silent_s: float
) -> tuple[RankLink, list[str], threading.Event]:
    heard: list[str] = []
    is_lost = threading.Event()

    def lose(rank: int, why: str) -> None:
        heard.append(f"rank {rank}: {why}")
        is_lost.set()

    link = RankLink(channel, 1, HashStore(), lose, alive_s=0.05, silent_s=silent_s)
    return link, heard, is_lost


def test_a_rank_that_says_nothing_is_lost(pair: Pair) -> None:
    leading, _, _, _ = pair
    link, heard, is_lost = link_over(leading, silent_s=0.2)
    assert is_lost.wait(WAIT_S)
    assert heard == ["rank 1: the other end was not heard in time"]
    with pytest.raises(UnavailableError, match="rank 1"):
        link.reply("ready", 1.0)


def test_a_rank_that_hangs_up_is_lost_and_one_that_is_sent_away_is_not(pair: Pair) -> None:
    leading, joined, _, _ = pair
    link, heard, is_lost = link_over(leading, silent_s=WAIT_S)
    joined.send(RankReply(ready=RankReady()).SerializeToString())
    assert link.reply("ready", WAIT_S).WhichOneof("reply") == "ready"
    link.close()
    assert heard == []
    assert not is_lost.is_set()


def test_an_idle_leader_says_that_it_is_there(pair: Pair) -> None:
    leading, joined, _, _ = pair
    link, _, _ = link_over(leading, silent_s=WAIT_S)
    assert joined.receive(WAIT_S), "a sign of life"
    link.close()


def test_an_answer_to_nothing_ends_the_link(pair: Pair) -> None:
    leading, joined, _, _ = pair
    _, heard, is_lost = link_over(leading, silent_s=WAIT_S)
    try:
        for _ in range(20):
            joined.send(RankReply(ready=RankReady()).SerializeToString())
    except PlaitError:
        pass  # it has hung up already
    assert is_lost.wait(WAIT_S)
    assert "nobody asked" in heard[0]
