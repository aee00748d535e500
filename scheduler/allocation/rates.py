"""What a plan's chains carry, model by model."""

from plait.types import ModelId
from scheduler.allocation.chain import ChainPlanner
from scheduler.allocation.demand import shares
from scheduler.allocation.problem import Allocation, AllocationProblem
from scheduler.handover import handed_over


def model_rates(problem: AllocationProblem, plan: Allocation) -> dict[ModelId, float]:
    """Tokens/s of each model's chains together, 0 where it has none."""
    planners = {spec.model_id: ChainPlanner(problem, spec) for spec in problem.models}
    placed = {p.node_id: p for p in plan.placements}
    found = dict.fromkeys(planners, 0.0)
    for chain in plan.pipelines:
        model_id = placed[chain[0]].model_id
        held = {node_id: placed[node_id].span for node_id in chain}
        spans = handed_over(list(held.values()), planners[model_id].spec.num_layers) or ()
        stages = list(zip(chain, spans, strict=True))
        found[model_id] += planners[model_id].evaluate(stages, held=held).tokens_per_s
    return found


def asked_shares(problem: AllocationProblem) -> dict[ModelId, float]:
    """Each model's part of the tokens/s asked, all together 1."""
    return shares([spec.model_id for spec in problem.models], dict(problem.demand))
