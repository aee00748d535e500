"""Clients that wait hear where they stand again when it changes, and not when time passes."""

import pytest

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.told import Told
from plait.types import RequestId
from tests.unit.core.stories import Story, only


def told(at_s: float, position: int, wait_s: float | None, code: str = "kv_full") -> Told:
    wait_ms = None if wait_s is None else round(1e3 * wait_s)
    return Told(at_ms=round(1e3 * at_s), code=code, position=position, wait_ms=wait_ms)


@pytest.mark.parametrize(
    ("last", "now", "is_news"),
    [
        (None, told(0, 3, None), True),
        (told(0, 3, 9), told(1, 3, 9, code="no_path"), True),
        (told(0, 3, 9), told(4, 3, 5), False),  # time passes as expected
        (told(0, 3, 9), told(0, 2, 9), True),
        (told(0, 3, 9), told(0, 4, 9), True),  # somebody with more right came
        (told(0, 40, None), told(0, 38, None), False),
        (told(0, 40, None), told(0, 36, None), True),
        (told(0, 3, 9), told(4, 3, 6.5), False),  # later by less than two seconds
        (told(0, 3, 9), told(4, 3, 8), True),
        (told(0, 3, 60), told(0, 3, 70), False),  # by less than a quarter
        (told(0, 3, 9), told(20, 3, 9), True),  # overdue
        (told(0, 3, None), told(0, 3, 9), True),
        (told(0, 3, 9), told(0, 3, None), True),
    ],
)
def test_what_is_news(last: Told | None, now: Told, is_news: bool) -> None:
    assert now.is_news_after(last) is is_news


def test_who_moves_up_in_the_queue_is_told_so() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1", prompt=4_000, new=96)
    story.tell(ev.RouteOpened(request_id=RequestId("r1"), epoch=1))
    for name, place in (("r2", 1), ("r3", 2), ("r4", 3)):
        (notice,) = only(story.submit(name, prompt=4_000, new=96), fx.NotifyQueued)
        assert (notice.request_id, notice.position) == (name, place)
    effects = story.finish("r1")
    assert [o.request_id for o in only(effects, fx.OpenRoute)] == ["r2"]
    heard = [(n.request_id, n.position) for n in only(effects, fx.NotifyQueued)]
    assert heard == [("r3", 1), ("r4", 2)]
    effects = story.tell(ev.RequestCancelled(request_id=RequestId("r3")))
    assert [(n.request_id, n.position) for n in only(effects, fx.NotifyQueued)] == [("r4", 1)]
