"""Weights that nodes have from before, as the core knows of them."""

from coordinator.core import effects as fx
from coordinator.core.state import Limits
from plait.types import CachedSpan, LayerSpan, ModelId, NodeId, merged
from tests.unit.core.stories import Story

TINY = ModelId("tiny")


def has(start: int, end: int, digest: str = "d") -> CachedSpan:
    return CachedSpan(model_id=TINY, span=LayerSpan(start, end), digest=digest)


def asked(caused: list[fx.Effect]) -> fx.SolveAllocation:
    return next(e for e in caused if isinstance(e, fx.SolveAllocation))


def test_spans_that_touch_are_one() -> None:
    assert merged([has(5, 9), has(0, 5), has(12, 14), has(7, 8)]) == (has(0, 9), has(12, 14))
    assert merged([has(0, 5), has(5, 9, "other")]) == (has(0, 5), has(5, 9, "other"))


def test_plans_know_what_is_on_nodes_disks_but_not_of_other_weights() -> None:
    story = Story(Limits(kv_tokens_min=1024))
    story.core.state.digests[TINY] = "d"
    story.join("a", cached=(has(0, 10), has(20, 25, "old"), has(25, 99)))
    problem = asked(story.wait(4_000, beating=("a",))).problem
    assert [(c.node_id, c.span) for c in problem.cached] == [("a", LayerSpan(0, 10))]


def test_what_a_node_loaded_once_is_on_its_disk_when_it_moves() -> None:
    story = Story(Limits(kv_tokens_min=1024))
    story.start("a", "b", memory_mib=400)
    node = story.core.state.nodes[NodeId("a")]
    assert node.span is not None and [c.span for c in node.cached] == [node.span]
