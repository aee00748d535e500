"""The nearest others of each node, against looking at every pair."""

from random import Random

import pytest

from plait.types import NodeId
from scheduler.allocation.bound import nearest_rings_ms
from scheduler.cost import Links
from tests.unit.scheduler.pools import node


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_nearest_rings_are_those_of_looking_at_every_pair(share: float) -> None:
    rng = Random(5)
    for num_nodes in range(1, 12):
        profiles = [node(f"n{i}", rtt_ms=rng.choice((1.0, 10.0, 30.0))) for i in range(num_nodes)]
        ids = [profile.node_id for profile in profiles]
        measured = [
            ((a, b), rng.uniform(0.5, 60)) for a in ids for b in ids if rng.random() < share
        ]
        links = Links(profiles, [*measured, ((ids[0], NodeId("gone")), 0.1)])
        for one, ring_ms in nearest_rings_ms(links, ids).items():
            others = [other for other in ids if other != one]
            there = min((links.rtt_ms(one, other) for other in others), default=0.0)
            back = min((links.rtt_ms(other, one) for other in others), default=0.0)
            assert ring_ms == there / 2 + back / 2
