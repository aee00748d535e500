"""Each hop's dtype, where the operator leaves it to the links."""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.routing import make_query
from plait.types import DType, RequestId
from tests.unit.core.stories import Story, only

HALF_MIB = 400


def opened(story: Story) -> fx.OpenRoute:
    (effect,) = only(story.submit("r1"), fx.OpenRoute)
    assert len(effect.route) == 2
    return effect


def halves(wire_dtype: DType | None) -> Story:
    """Two nodes that hold one half each."""
    story = Story(wire_dtype=wire_dtype)
    story.start("a", "b", memory_mib=HALF_MIB)
    return story


def measured(story: Story, bytes_per_s: float) -> None:
    for a in story.core.state.nodes:
        for b in story.core.state.nodes:
            if a != b:
                story.tell(
                    ev.NeighbourMeasured(
                        node_id=a,
                        neighbour_id=b,
                        rtt_ms=9.0,
                        bytes_per_s=bytes_per_s,
                        is_reachable=True,
                    )
                )


def test_where_the_operator_names_one_tickets_name_no_other() -> None:
    story = halves(DType.FLOAT32)
    measured(story, 1e5)
    assert opened(story).hop_dtypes == ()


def test_a_slow_link_gets_the_smallest_a_fast_one_the_widest() -> None:
    slow, fast = halves(None), halves(None)
    measured(slow, 1e5)
    measured(fast, 1e12)
    assert opened(slow).hop_dtypes == (DType.INT8, DType.FLOAT32)
    assert opened(fast).hop_dtypes == (DType.FLOAT32, DType.FLOAT32)


def test_prices_are_those_of_the_bytes_that_slow_links_carry() -> None:
    """Where a wider dtype is chosen, its transfer is too short to matter in a price."""
    story = halves(None)
    opened(story)
    (spec,) = story.core.state.models.values()
    query = make_query(story.core.state, spec, story.core.state.requests[RequestId("r1")])
    assert query.hop_bytes == DType.INT8.row_bytes(spec.hidden_size)
