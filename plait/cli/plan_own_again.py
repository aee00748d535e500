"""A pool of plait's own, planned on from a plan that was made before."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plait.cli.plan_current import Current, match_models, match_pool
from plait.cli.plan_moves import GIB, Held, Moves, shifts_of
from plait.errors import UnavailableError

if TYPE_CHECKING:
    from plait.types import ModelId
    from scheduler.allocation import Allocation, AllocationProblem, Placement


def plan_from(
    problem: "AllocationProblem", current: Current, file: Path
) -> "tuple[Allocation, AllocationProblem, Moves]":
    """The fewest moves from what `current` says is held, the question with that in it, and what
    changes. Raises ConfigError (a plan of another pool or model), UnavailableError."""
    from plait.cli.solver import Solver
    from scheduler.allocation.moves import moved

    names: list[str] = [node.node_id for node in problem.nodes]
    match_models(current, {spec.model_id: spec.num_layers for spec in problem.models})
    gone, joined = match_pool(current, names, str(file))
    placements = _placements(current, problem.models[0].model_id)
    held, notes = _fitting(problem, placements)
    standing = replace(problem, held=held, is_repair=True)
    plan = Solver().allocate(standing)
    before: dict[str, Held] = {p.node_id: _held(p) for p in placements if p.node_id in names}
    after: dict[str, Held] = {p.node_id: _held(p) for p in plan.placements}
    reads: dict[str, int] = {p.node_id: moved(standing, (p,)).num_bytes for p in plan.placements}
    moves = Moves(
        shifts=shifts_of(names, before, after, reads),
        gone=tuple(gone),
        joined=tuple(joined),
        num_kept=sum(after.get(name) == own for name, own in before.items()),
        anew_tokens_per_s=_anew_tokens_per_s(problem),
    )
    return replace(plan, warnings=(*notes, *plan.warnings)), standing, moves


def _placements(current: Current, only: "ModelId") -> "tuple[Placement, ...]":
    """What the plan says, of the one model where it names none."""
    from plait.types import LayerSpan, ModelId, NodeId
    from scheduler.allocation import Placement

    return tuple(
        Placement(
            node_id=NodeId(stage.node),
            model_id=ModelId(stage.model) if stage.model is not None else only,
            span=LayerSpan(stage.start, stage.end),
            reason="keeps what it holds",
        )
        for stage in current.held
    )


def _fitting(
    problem: "AllocationProblem", placements: "tuple[Placement, ...]"
) -> "tuple[tuple[Placement, ...], list[str]]":
    """What nodes of the pool can hold still, and a note of each that cannot."""
    from scheduler.cost import need_bytes

    profiles = {node.node_id: node for node in problem.nodes}
    specs = {spec.model_id: spec for spec in problem.models}
    held: list[Placement] = []
    notes: list[str] = []
    for placement in placements:
        profile, spec = profiles.get(placement.node_id), specs[placement.model_id]
        if profile is None:
            continue
        kv_tokens = max(1, min(problem.kv_tokens_min, spec.context_tokens_max))
        need = need_bytes(profile, spec, placement.span, kv_tokens)
        if need > profile.memory_bytes:
            notes.append(
                f"{placement.node_id} can hold layers {placement.span} of {placement.model_id} no "
                f"more: {need / GIB:.2f} GiB needed, {profile.memory_bytes / GIB:.2f} allowed"
            )
            continue
        held.append(placement)
    return tuple(held), notes


def _anew_tokens_per_s(problem: "AllocationProblem") -> float | None:
    from plait.cli.solver import Solver

    try:
        return Solver().allocate(problem).objective_tokens_per_s
    except UnavailableError:
        return None


def _held(placement: "Placement") -> Held:
    return Held(placement.model_id, placement.span.start, placement.span.end)
