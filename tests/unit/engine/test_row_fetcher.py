"""Fetches go one after the other in a thread; each ends in a word to whoever asked."""

import queue
import threading

import pytest

from node.engine.background import WAITING_MAX
from node.engine.row_fetcher import RowFetcher
from plait.errors import OverloadedError, PlaitError, WeightsError

DEADLINE_S = 10.0


def test_fetches_keep_their_order_and_say_how_they_went() -> None:
    fetched: list[list[int]] = []
    heard: queue.Queue[PlaitError | None] = queue.Queue()

    def fetch(ids: list[int]) -> None:
        fetched.append(ids)
        if ids == [2]:
            raise WeightsError("nobody answers", reason="weights_unavailable")
        if ids == [3]:
            raise RuntimeError("a bug")

    fetcher = RowFetcher(fetch)
    for ids in ([1], [2], [3], [4]):
        fetcher.ask(ids, heard.put)
    told = [heard.get(timeout=DEADLINE_S) for _ in range(4)]
    assert fetched == [[1], [2], [3], [4]]
    assert [error and error.code for error in told] == [None, *["weights_unavailable"] * 2, None]
    assert "RuntimeError: a bug" in str(told[2])
    fetcher.close()


def test_no_more_wait_than_may_and_none_is_answered_after_closing() -> None:
    may_go_on, is_started, has_ended = threading.Event(), threading.Event(), threading.Event()
    heard: list[PlaitError | None] = []

    def fetch(ids: list[int]) -> None:
        is_started.set()
        assert may_go_on.wait(DEADLINE_S)
        has_ended.set()

    fetcher = RowFetcher(fetch)
    fetcher.ask([0], heard.append)
    assert is_started.wait(DEADLINE_S)
    for _ in range(WAITING_MAX):
        fetcher.ask([1], heard.append)
    with pytest.raises(OverloadedError, match="rows already") as refused:
        fetcher.ask([1], heard.append)
    assert refused.value.code == "queue_full"
    fetcher.close()
    fetcher.close()
    may_go_on.set()
    assert has_ended.wait(DEADLINE_S)
    fetcher.join(DEADLINE_S)
    assert heard == [None]
