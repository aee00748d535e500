"""A request that gave its KV to an earlier one: back to the queue, and nobody is to blame."""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.state import Limits
from plait.types import PREEMPTED, Reason, RequestId
from tests.unit.core.stories import Story, only

R = RequestId("r")


def preempt(story: Story, epoch: int) -> list[fx.Effect]:
    reason = Reason(code=PREEMPTED, message="its KV slots went to an earlier request")
    node_id = story.core.state.requests[R].last_route[0].node_id
    broke = ev.RouteBroke(
        request_id=R, epoch=epoch, node_id=node_id, reason=reason, num_generated=3
    )
    return story.tell(broke)


def test_a_preempted_request_may_go_to_the_same_chain_again_at_once() -> None:
    story = Story(Limits(kv_tokens_min=1024, attempts_max=2))
    story.start("a", memory_mib=2_000)
    story.submit("r", new=100)
    for epoch in range(1, 6):
        (again,) = only(preempt(story, epoch), fx.OpenRoute)
        assert (again.request_id, again.epoch) == ("r", epoch + 1)
    request, (node,) = story.core.state.requests[R], story.core.state.nodes.values()
    assert (request.num_attempts, request.avoid, node.num_blames) == (1, {}, 0)
    assert (story.core.state.counters.routes_moved, story.core.state.counters.routes_broken) == (
        5,
        0,
    )


def test_a_node_that_preempts_for_ever_is_blamed_in_the_end() -> None:
    story = Story(Limits(kv_tokens_min=1024, preempted_max=2))
    story.start("a", memory_mib=2_000)
    story.submit("r", new=100)
    for epoch in (1, 2):
        preempt(story, epoch)
    assert not only(preempt(story, 3), fx.OpenRoute)
    (node,) = story.core.state.nodes.values()
    assert node.num_blames == 1
