"""Plans of whole pools: replicas, refusals, and solvers that fail."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from plait.errors import UnavailableError
from scheduler.planning.check import pool_violations
from scheduler.planning.ground import Wish
from scheduler.planning.kinds import MachineClass
from scheduler.planning.pack import NoSolverError, Packing, greedy_packing
from scheduler.planning.patterns import Pattern
from scheduler.planning.pool import EXHAUSTIVE_MACHINES_MAX, plan_pool
from tests.unit.scheduler.grounds import draw_ground, model


@pytest.mark.parametrize("num_nodes", [6, 12, 40])
def test_a_plan_passes_the_check_and_is_below_its_bound(num_nodes: int) -> None:
    ground = draw_ground(3, num_nodes)
    plan = plan_pool(ground, Wish())
    assert plan.chains
    assert pool_violations(ground, plan) == []
    assert plan.solver == ("exhaustive" if num_nodes <= EXHAUSTIVE_MACHINES_MAX else "highs")


def test_the_same_question_has_the_same_answer() -> None:
    ground = draw_ground(5, 30)
    assert plan_pool(ground, Wish()) == plan_pool(ground, Wish())


def test_replicas_stay_in_their_region_where_that_is_possible() -> None:
    ground = draw_ground(8, 60)
    plan = plan_pool(ground, Wish())
    mixed = [c for c in plan.chains if len({ground.machines[i].region for i in c.members}) > 1]
    assert len(mixed) <= len(ground.regions)


def test_wishes_are_kept() -> None:
    ground = draw_ground(4, 24)
    free = plan_pool(ground, Wish())
    shortest = min(len(c.members) for c in free.chains)
    short = plan_pool(ground, Wish(stages_max=shortest))
    assert all(len(c.members) <= shortest for c in short.chains)
    quickest_s = min(c.tpot_s for c in free.chains)
    quick = plan_pool(ground, Wish(tpot_s_max=1.5 * quickest_s))
    assert all(c.tpot_s <= 1.5 * quickest_s for c in quick.chains)
    assert quick.rate_per_s <= free.rate_per_s * 1.001


def test_an_impossible_token_time_names_the_nearest_possible_one() -> None:
    ground = draw_ground(4, 24)
    with pytest.raises(UnavailableError, match="nearest feasible is") as refused:
        plan_pool(ground, Wish(tpot_s_max=1e-3))
    assert refused.value.code == "slo_infeasible"
    nearest_ms = float(str(refused.value).split()[-2])
    assert plan_pool(ground, Wish(tpot_s_max=nearest_ms / 1e3)).chains
    with pytest.raises(UnavailableError, match="the shortest has"):
        plan_pool(ground, Wish(stages_max=1))


def test_a_model_that_does_not_fit_says_how_much_is_missing() -> None:
    with pytest.raises(UnavailableError, match="GiB of weights are missing") as refused:
        plan_pool(draw_ground(1, 1), Wish())
    assert refused.value.code == "not_enough_memory"


def _absent(_: Sequence[Pattern], __: Sequence[MachineClass], ___: float) -> Packing:
    raise NoSolverError("no solver is installed")


def _lying(patterns: Sequence[Pattern], classes: Sequence[MachineClass], _: float) -> Packing:
    honest = greedy_packing(patterns, classes)
    return replace(honest, uses=(10_000,) * len(patterns), lp_bound=math.nan)


@pytest.mark.parametrize(("packer", "said"), [(_absent, "without the solver"), (_lying, "refused")])
def test_a_solver_that_fails_leaves_a_greedy_plan_and_a_warning(packer: object, said: str) -> None:
    ground = draw_ground(6, 12)
    plan = plan_pool(ground, Wish(), packer=packer)  # type: ignore[arg-type]
    assert plan.chains
    assert said in plan.warnings[0]
    assert pool_violations(ground, plan) == []


def test_the_check_finds_what_is_wrong() -> None:
    ground = draw_ground(3, 12)
    plan = plan_pool(ground, Wish())
    first = plan.chains[0]
    doubled = replace(plan, chains=(first, first))
    assert any("two places" in said for said in pool_violations(ground, doubled))
    short = replace(first, counts=(*first.counts[:-1], first.counts[-1] - 1))
    assert any("of 80 layers" in s for s in pool_violations(ground, replace(plan, chains=(short,))))
    fast = replace(first, rate=first.rate * 2)
    assert any("carries" in s for s in pool_violations(ground, replace(plan, chains=(fast,))))
    crowded = replace(first, counts=(79, *(1 for _ in first.counts[1:])))
    assert any(
        "cannot hold" in s for s in pool_violations(ground, replace(plan, chains=(crowded,)))
    )
    low = replace(plan, bound_per_s=plan.rate_per_s / 2)
    assert any("exceeds its bound" in said for said in pool_violations(ground, low))


def test_small_models_stand_on_single_nodes() -> None:
    ground = draw_ground(2, 10, model(32, layer_mib=200.0))
    plan = plan_pool(ground, Wish())
    assert any(len(chain.members) == 1 for chain in plan.chains)
    assert pool_violations(ground, plan) == []


def test_machines_of_one_name_that_differ_count_as_what_they_are() -> None:
    """A cap on some machines' KV does not bind the others."""
    ground = draw_ground(26, 24, model(40), num_regions=1)
    wide = [replace(m, kv_bytes=500 * m.kv_sequence_bytes) for m in ground.machines]
    roomy = plan_pool(replace(ground, machines=tuple(wide[:12])), Wish())
    capped = [replace(m, kv_bytes=m.kv_sequence_bytes) for m in wide[12:]]
    both = replace(ground, machines=(*wide[:12], *capped))
    plan = plan_pool(both, Wish())
    assert not pool_violations(both, plan)
    assert plan.rate_per_s >= roomy.rate_per_s * 0.999


def test_no_plan_is_below_the_greedy_one() -> None:
    ground = draw_ground(53, 20, model(28))
    losses = (0.0, 0.5, 3.0)
    lossy = replace(
        ground,
        machines=tuple(replace(m, loss=losses[i % 3]) for i, m in enumerate(ground.machines)),
    )
    greedy = plan_pool(lossy, Wish(), trouble="none here")
    assert plan_pool(lossy, Wish()).rate_per_s >= greedy.rate_per_s


def test_many_small_machines_form_one_long_chain() -> None:
    """More stages than any pattern has."""
    ground = draw_ground(3, 26, model(60), num_regions=1)
    small = tuple(
        replace(m, room_bytes=3.3 * m.layer_bytes + m.first_bytes) for m in ground.machines
    )
    small = tuple(replace(m, room_bytes=3.9 * m.layer_bytes) for m in small[:-2]) + small[-2:]
    narrow = replace(ground, machines=small)
    plan = plan_pool(narrow, Wish())
    assert [len(chain.members) > 12 for chain in plan.chains] == [True]
    assert not pool_violations(narrow, plan)
    with pytest.raises(UnavailableError):
        plan_pool(narrow, Wish(stages_max=12))
