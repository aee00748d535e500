"""Simulated nodes with time to spare share no steps, by the rule that real ones follow."""

from dataclasses import replace
from random import Random

from node.engine.batcher import Batcher
from node.engine.patience import Patience as NodePatience
from scheduler.simulation.engine import Engine
from scheduler.simulation.patience import Patience
from scheduler.simulation.plait import Plait
from scheduler.simulation.pool import Pool
from scheduler.simulation.trace import Arrival
from tests.unit.scheduler.test_simulation import halves, machine, pool


def both() -> tuple[NodePatience, Patience]:
    batcher = Batcher(step_tokens_max=8, queue_tokens_max=64)
    return NodePatience(batcher, group_max=6, limit_ms=15.0), Patience(group_max=6)


def test_a_simulated_node_is_roomy_whenever_a_real_one_would_be() -> None:
    rng, seen = Random(1), set()
    for _ in range(300):
        real, simulated = both()
        travel_ms, step_ms = rng.choice((0.0, 5.0, 9.0, 20.0)), rng.choice((4.0, 8.0))
        real.sequence_opened(0, travel_ms=travel_ms)
        simulated.opened(travel_ms / 1e3, 1)
        at_ms = 0.0
        for _ in range(rng.randrange(40)):
            num_sequences = rng.randrange(1, 5)
            at_ms += step_ms * rng.choice((1.0, 2.0, 6.0))
            real.stepped(num_sequences, step_ms, at_ms)
            simulated.ended(num_sequences, step_ms / 1e3, at_ms / 1e3)
            assert simulated.is_roomy == real.is_roomy
            seen.add(simulated.is_roomy)
    assert seen == {False, True}


def test_whoever_comes_to_an_empty_node_begins_the_count_anew() -> None:
    patience = Patience(group_max=6)
    patience.opened(0.06, 1)
    for step in range(24):
        patience.ended(1, 0.001, 0.1 * step)
    assert patience.is_roomy
    patience.opened(0.06, 2)
    assert patience.is_roomy
    patience.opened(0.06, 1)
    assert not patience.is_roomy


def tokens_per_s(of: Pool, num_requests: int) -> float:
    outcomes = Engine(
        of, [Arrival(0.0, 1, 200)] * num_requests, Plait(of, halves), group_max=6
    ).run()
    return sum(o.num_generated for o in outcomes) / max(o.last_s for o in outcomes)


def test_groups_come_apart_where_rows_travel_and_stay_together_where_they_do_not() -> None:
    """Steps that take as long again for each further sequence: sharing gains nothing there."""
    slow = replace(machine("a").curve, read_s=0.0, compute_s=0.004)
    two = [replace(machine(name), curve=slow) for name in "ab"]
    far = pool(two[0], replace(two[1], region=1))
    near = pool(*two)
    assert tokens_per_s(far, 4) > 3.6 * tokens_per_s(far, 1)
    together = Engine(near, [Arrival(0.0, 1, 200)] * 2, Plait(near, halves), group_max=6)
    together.run()
    assert not any(node.patience.is_roomy for node in together.nodes)
