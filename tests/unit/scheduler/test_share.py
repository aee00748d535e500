"""Several models on one pool, one promise each; held against every possible division."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from plait.errors import UnavailableError
from scheduler.planning.check import shared_violations
from scheduler.planning.exact import plan_exactly
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.pool import plan_pool
from scheduler.planning.share import SharedPlan, share_pool
from tests.unit.scheduler.grounds import draw_ground, model

LARGE, SMALL = model(60, layer_mib=400.0), model(32, layer_mib=250.0)
HUGE = model(60, layer_mib=40_000.0)


def grounds_of(seed: int, num_nodes: int) -> list[Ground]:
    return [draw_ground(seed, num_nodes, figures, num_regions=1) for figures in (LARGE, SMALL)]


def shared(grounds: Sequence[Ground], *parts: float) -> SharedPlan:
    found = share_pool(grounds, parts, Wish(), plan_pool)
    assert shared_violations(grounds, found.plans) == []
    return found


def met(rates: Sequence[float], parts: Sequence[float]) -> tuple[int, float]:
    """Models served, and the least of what any has of its part."""
    own = [rate / part for rate, part in zip(rates, parts, strict=True) if rate > 0.0]
    return len(own), min(own, default=0.0)


def divisions(grounds: Sequence[Ground]) -> Iterator[list[float]]:
    """The naive twin: what two models reach, in all ways to give every machine to one of them."""
    for sides in itertools.product((0, 1), repeat=len(grounds[0].machines)):
        rates = []
        for side, ground in enumerate(grounds):
            own = tuple(m for m, at in zip(ground.machines, sides, strict=True) if at == side)
            chains = plan_exactly(replace(ground, machines=own), Wish()) if own else []
            rates.append(sum(chain.rate for chain in chains))
        yield rates


@pytest.mark.slow
def test_small_pools_are_shared_nearly_as_well_as_they_can_be() -> None:
    reached: list[float] = []
    for seed in (1, 2):
        grounds = grounds_of(seed, 5)
        all_rates = list(divisions(grounds))
        for parts in ((0.5, 0.5), (0.2, 0.8)):
            num_served, least = met(shared(grounds, *parts).rates_per_s(), parts)
            served_best, least_best = max(met(rates, parts) for rates in all_rates)
            assert num_served == served_best
            reached.append(least / least_best)
    assert min(reached) >= 0.65 and sum(reached) >= 0.92 * len(reached)


@pytest.mark.slow
def test_shares_follow_what_is_asked() -> None:
    grounds = grounds_of(5, 14)
    few, many = shared(grounds, 0.15, 0.85), shared(grounds, 0.5, 0.5)
    assert few.rates_per_s()[0] < many.rates_per_s()[0]
    assert few.rates_per_s()[1] > many.rates_per_s()[1]
    for plan in (few, many):
        used = [i for own in plan.plans for chain in own.chains for i in chain.members]
        assert len(used) == len(set(used))
        assert all(0 < r <= a for r, a in zip(plan.rates_per_s(), plan.alone_per_s, strict=True))


@pytest.mark.slow
def test_the_same_question_has_the_same_answer() -> None:
    grounds = grounds_of(7, 5)
    assert shared(grounds, 0.3, 0.7) == shared(grounds, 0.3, 0.7)


@pytest.mark.slow
def test_a_model_that_fits_nowhere_takes_nothing_from_the_other() -> None:
    huge, small = (draw_ground(3, 4, figures, num_regions=1) for figures in (HUGE, SMALL))
    found = shared([huge, small], 0.9, 0.1)
    assert found.alone_per_s[0] == 0.0 and found.plans[0].chains == ()
    alone = plan_pool(small, Wish())
    assert found.rates_per_s()[1] == pytest.approx(alone.rate_per_s)


def test_where_nothing_fits_the_reason_is_said() -> None:
    grounds = [draw_ground(3, 3, HUGE, num_regions=1)] * 2
    with pytest.raises(UnavailableError, match="GiB of weights are missing"):
        share_pool(grounds, (0.5, 0.5), Wish(), plan_pool)


def test_the_check_finds_a_machine_that_serves_two_models() -> None:
    grounds = grounds_of(5, 14)
    plan = plan_pool(grounds[0], Wish())
    other = plan_pool(grounds[1], Wish())
    assert any("serves models 1 and 2" in w for w in shared_violations(grounds, [plan, other]))
    assert shared_violations(grounds, [plan]) == ["1 plans for 2 models"]
    lying = replace(plan, rate_per_s=2 * plan.rate_per_s)
    assert shared_violations(grounds[:1], [lying])[0].startswith("model 1: ")
