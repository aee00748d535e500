"""A node that was slow is shunned at once, tried again in time, and used again once it is well."""

from itertools import pairwise

from coordinator.core import effects as fx
from coordinator.core import events as ev
from plait.types import NodeId, RequestId
from tests.unit.core.stories import Story, only
from tests.unit.core.test_calibrating import work

NAMES = ("a", "b")
SLOW = 10.0


class Pool:
    """Two nodes with the whole model. One of them, `slow`, became slow under its first request and
    idles since."""

    def __init__(self) -> None:
        self.story = Story()
        self.story.start(*NAMES, memory_mib=2_000)
        self.num_asked = 0
        self.slow = self.ask()
        self.work(SLOW, beats=9)
        self.end()

    def ask(self) -> NodeId:
        """Where another request runs."""
        self.story.wait(10)
        self.num_asked += 1
        submitted = self.story.submit(f"r{self.num_asked}", new=500)
        return only(submitted, fx.OpenRoute)[0].route[0].node_id

    def end(self) -> None:
        """The newest request ends."""
        self.story.tell(ev.RequestCancelled(request_id=RequestId(f"r{self.num_asked}")))

    def ask_briefly(self, num: int) -> list[NodeId]:
        """Where so many requests run, one after another."""
        found = []
        for _ in range(num):
            found.append(self.ask())
            self.end()
        return found

    def work(self, slow: float, *, beats: int) -> None:
        """Seconds in which the node runs steps."""
        for _ in range(beats):
            work(self.story, self.slow, slow, beats=1)
            self._beat(self.well)

    def rest(self, seconds: int) -> None:
        """Nothing runs anywhere."""
        for _ in range(seconds):
            self.story.wait(1_000)
            for name in NAMES:
                self._beat(NodeId(name))

    def _beat(self, node_id: NodeId) -> None:
        load = self.story.core.state.nodes[node_id].load
        assert load is not None
        self.story.tell(ev.NodeReported(node_id=node_id, incarnation=1, load=load))

    @property
    def well(self) -> NodeId:
        return NodeId("b" if self.slow == "a" else "a")


def test_an_idle_node_that_was_slow_is_shunned_though_nothing_else_has_changed() -> None:
    pool = Pool()
    assert pool.ask_briefly(20) == [pool.well] * 20


def test_what_recovered_unseen_is_used_again_within_minutes() -> None:
    pool = Pool()
    pool.rest(60)
    assert pool.ask_briefly(4) == [pool.well] * 4, "not as soon as that"
    pool.rest(120)
    record = pool.story.core.state.nodes[pool.slow]
    assert record.calibration.factors[0] == SLOW, "plans go by what was seen"
    while pool.ask() != pool.slow:
        pool.end()
    pool.work(1.0, beats=3)
    pool.end()
    assert record.calibration.factors[0] == 1.0
    assert set(pool.ask_briefly(4)) == set(NAMES)


def test_one_that_is_slow_still_is_tried_by_one_request_at_a_time_and_ever_less_often() -> None:
    pool = Pool()
    trials_s: list[int] = []
    for second in range(0, 1_800, 10):
        if pool.ask() == pool.slow:
            trials_s.append(second)
            slow_one = RequestId(f"r{pool.num_asked}")
            assert pool.ask_briefly(10) == [pool.well] * 10, "nobody joins it there"
            pool.work(SLOW, beats=4)
            pool.story.tell(ev.RequestCancelled(request_id=slow_one))
            pool.rest(6)
        else:
            pool.end()
            pool.rest(10)
    between_s = [after - before for before, after in pairwise(trials_s)]
    assert 2 <= len(trials_s) <= 5 and between_s == sorted(between_s), trials_s
