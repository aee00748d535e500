"""Phase 1 from the core's side: when to ask for a plan, whether to believe it, how to apply it."""

from typing import Final

from coordinator.core import effects as fx
from coordinator.core.counters import Counters
from coordinator.core.events import AllocationSolved
from coordinator.core.machines import NodeState, NodeTrigger
from coordinator.core.question import is_placed, problem_of
from coordinator.core.state import CoreState, NodeRecord
from coordinator.core.timers import NodeKey, TimerKind
from plait.errors import UnavailableError
from plait.types import LayerSpan, ModelId, Reason, missing_spans
from scheduler.allocation import allocate_greedy, violations
from scheduler.allocation.problem import Allocation, AllocationProblem, Placement
from scheduler.allocation.remedy import shortages
from scheduler.allocation.shortage import Shortage

SHRINK: Final = 0.9
ADVISED_NODES_MAX: Final = 16
MEMORY_CODES: Final = frozenset(
    {"not_enough_memory", "memory_full", "overloaded", "out_of_memory", "kv_full"}
)


def ask_plan(state: CoreState) -> None:
    """Plan soon: after a short silence, so that nodes that arrive together are planned together."""
    planning, limits, now_ms = state.planning, state.limits, state.now_ms
    if planning.solve_at_ms is None:
        planning.first_asked_ms = now_ms
    latest_ms = planning.first_asked_ms + limits.solve_debounce_max_ms
    planning.solve_at_ms = min(latest_ms, now_ms + limits.solve_debounce_ms)
    state.timers.at(planning.solve_at_ms, TimerKind.SOLVE)


def plan_due(state: CoreState) -> None:
    """The silence is over. One question at a time: while one is out, the next one waits."""
    planning = state.planning
    if planning.solve_at_ms is None or planning.solve_at_ms > state.now_ms:
        return
    if planning.problem is not None:
        return
    gather_until_ms = _gather_until_ms(state)
    if gather_until_ms is not None:
        planning.solve_at_ms = gather_until_ms
        state.timers.at(gather_until_ms, TimerKind.SOLVE)
        return
    planning.solve_at_ms = None
    is_relaxed, is_repair = planning.wants_relaxed, planning.wants_repair
    planning.wants_relaxed = planning.wants_repair = False
    _solve(state, is_relaxed=is_relaxed or is_repair, is_repair=is_repair and not is_relaxed)


def _gather_until_ms(state: CoreState) -> int | None:
    """The first plan waits, within limits, for the nodes that the operator expects; and, where
    some come back with what an earlier coordinator gave them, for the rest of those."""
    planning, limits = state.planning, state.limits
    if planning.in_force is not None or planning.first_profiled_ms is None:
        return None
    wait_ms = 0
    if sum(n.profile is not None for n in state.nodes.values()) < limits.first_plan_nodes_min:
        wait_ms = limits.first_plan_wait_ms
    if any(n.held is not None for n in state.nodes.values()):
        wait_ms = max(wait_ms, limits.return_wait_ms)
    until_ms = planning.first_profiled_ms + wait_ms
    return until_ms if until_ms > state.now_ms else None


def solve_overdue(state: CoreState, epoch: int) -> None:
    """The shell never answered: as if the solver had failed."""
    if state.planning.problem is not None and state.planning.epoch == epoch:
        reason = Reason(code="solver_timeout", message="the solver gave no answer in time")
        _conclude(state, None, reason, ())


def allocation_solved(state: CoreState, event: AllocationSolved) -> None:
    """Apply the answer to the question that is out; any other is stale."""
    if state.planning.problem is None or event.epoch != state.planning.epoch:
        state.ignore()
        return
    _conclude(state, event.allocation, event.reason, event.shortages)


def _solve(state: CoreState, *, is_relaxed: bool, is_repair: bool = False) -> None:
    """Ask, if there is anything to place: nodes without a span, or, where layers are missing or
    the operator asks, idle nodes that may move; few of them for a repair."""
    planning = state.planning
    joining = [n for n in state.nodes.values() if _is_plannable(state, n)]
    is_broken = bool(uncovered(state))
    if not joining and not is_relaxed:
        if not is_broken and not _may_repair(state):
            return
        is_relaxed = is_repair = True
    members = [n for n in state.nodes.values() if _is_plannable(state, n) or is_placed(n)]
    fixed = [n for n in members if is_placed(n) and (n.pipelines or not is_relaxed)]
    if len(fixed) == len(members):
        return
    planning.epoch += 1
    planning.is_relaxed = is_relaxed
    planning.attachments = {n.node_id: n.attachment for n in members}
    planning.problem = problem_of(state, members, fixed, is_repair=is_repair)
    if is_relaxed:
        planning.moved_ms = state.now_ms
    state.timers.at(
        state.now_ms + state.limits.solve_limit_ms, TimerKind.SOLVE_LIMIT, planning.epoch
    )
    state.emit(fx.SolveAllocation(epoch=planning.epoch, problem=planning.problem))


def question_of_replan(
    state: CoreState, *, may_move_busy: bool = False
) -> AllocationProblem | None:
    """What an operator who asks for a plan would have asked by now; None where nothing may move.
    `may_move_busy`: as if nothing ran. Changes nothing."""
    members = [n for n in state.nodes.values() if _is_plannable(state, n) or is_placed(n)]
    fixed = [n for n in members if is_placed(n) and n.pipelines and not may_move_busy]
    if len(fixed) == len(members):
        return None
    return problem_of(state, members, fixed, is_repair=False, is_asked=False)


def _may_repair(state: CoreState) -> bool:
    """A planned node is gone, so that a replica is torn; moves may follow each other only so
    often. Asks again when they may."""
    planning, limits = state.planning, state.limits
    plan = planning.in_force
    if plan is None or all(_holds(state, placement) for placement in plan.placements):
        return False
    since_ms = planning.moved_ms if _has_idle(state) else state.now_ms
    due_ms = 0 if since_ms is None else since_ms + limits.repair_interval_ms
    if due_ms > state.now_ms:
        planning.solve_at_ms = due_ms
        state.timers.at(due_ms, TimerKind.SOLVE)
        return False
    return True


def _holds(state: CoreState, placement: Placement) -> bool:
    node = state.nodes.get(placement.node_id)
    return node is not None and is_placed(node)


def _is_plannable(state: CoreState, node: NodeRecord) -> bool:
    return (
        node.state is NodeState.JOINING
        and node.profile is not None
        and node.plan_after_ms <= state.now_ms
    )


def _conclude(
    state: CoreState,
    allocation: Allocation | None,
    reason: Reason | None,
    lacking: tuple[Shortage, ...],
) -> None:
    planning = state.planning
    problem, planning.problem = planning.problem, None
    assert problem is not None
    if allocation is not None:
        wrong = violations(problem, allocation)
        if wrong:
            allocation, reason = None, Reason(code="plan_refused", message=wrong[0])
    if allocation is None and (reason is None or reason.code != "not_enough_memory"):
        allocation, reason = _plan_without_solver(problem, reason)
        # Asking what would help means planning again and again: here only for few nodes.
        is_small = len(problem.nodes) <= ADVISED_NODES_MAX
        lacking = shortages(problem, allocation) if is_small else ()
    planning.shortages = {lack.model_id: lack for lack in lacking}
    if allocation is not None:
        planning.error = None
        _apply(state, allocation, problem)
    else:
        planning.error = reason
        if not planning.is_relaxed and uncovered(state) and _has_idle(state):
            _solve(state, is_relaxed=True, is_repair=True)
            return
    if planning.solve_at_ms is not None:
        ask_plan(state)


def _plan_without_solver(
    problem: AllocationProblem, reason: Reason | None
) -> tuple[Allocation | None, Reason | None]:
    said = reason.message if reason is not None else "the solver returned nothing"
    try:
        plan = allocate_greedy(problem, warnings=(f"planned without the solver: {said}",))
    except UnavailableError as error:
        return None, Reason(code=error.code, message=error.message)
    wrong = violations(problem, plan)
    if wrong:
        return None, Reason(code="plan_refused", message=wrong[0])
    return plan, None


def _has_idle(state: CoreState) -> bool:
    return any(is_placed(n) and not n.pipelines for n in state.nodes.values())


def _apply(state: CoreState, allocation: Allocation, problem: AllocationProblem) -> None:
    """Assign what still fits the present: the world went on while the solver thought."""
    planning = state.planning
    planning.in_force, planning.in_force_epoch = allocation, planning.epoch
    _count_moves(state.counters, allocation)
    planning.changes.note(
        allocation,
        problem,
        at_ms=state.now_ms,
        epoch=planning.epoch,
        is_relaxed=planning.is_relaxed,
    )
    is_incomplete = False
    for placement in allocation.placements:
        node = state.nodes.get(placement.node_id)
        if node is None or node.attachment != planning.attachments.get(placement.node_id):
            is_incomplete = True
            continue
        if is_placed(node) and (node.model_id, node.span) == (placement.model_id, placement.span):
            continue
        may_move = _is_plannable(state, node) or (
            planning.is_relaxed and is_placed(node) and not node.pipelines
        )
        if may_move:
            _assign(state, node, placement)
        else:
            is_incomplete = True
    if planning.is_relaxed:
        _unassign_others(state, allocation)
    elif _leaves_out(state, allocation):
        planning.wants_relaxed = True
        ask_plan(state)
    if is_incomplete:
        ask_plan(state)


def _count_moves(counters: Counters, allocation: Allocation) -> None:
    counters.nodes_moved += allocation.moved_nodes
    counters.weight_bytes_moved += allocation.moved_bytes
    counters.weight_bytes_fetched += allocation.fetched_bytes


def _leaves_out(state: CoreState, allocation: Allocation) -> bool:
    """Whether a model has no node though some that may move have nothing to do."""
    served = {placement.model_id for placement in allocation.placements}
    return any(model_id not in served for model_id in state.models) and _has_idle(state)


def _unassign_others(state: CoreState, allocation: Allocation) -> None:
    """Idle nodes whose span a plan that moves nodes wants no more let go of it and stand by."""
    wanted = {placement.node_id for placement in allocation.placements}
    for node_id, attachment in state.planning.attachments.items():
        node = state.nodes.get(node_id)
        is_same = node is not None and node.attachment == attachment
        if node is None or not is_same or node_id in wanted:
            continue
        if is_placed(node) and not node.pipelines:
            state.move_node(node, NodeTrigger.UNASSIGNED)
            node.model_id = node.span = node.held = None
            node.span_reason, node.epoch = "stands by: the plan needs its span no more", 0
            state.emit(
                fx.UnassignSpan(
                    node_id=node_id,
                    incarnation=node.incarnation,
                    epoch=state.planning.in_force_epoch,
                )
            )


def _assign(state: CoreState, node: NodeRecord, placement: Placement) -> None:
    state.move_node(node, NodeTrigger.ASSIGNED)
    node.model_id, node.span = placement.model_id, placement.span
    node.span_reason, node.epoch = placement.reason, state.planning.epoch
    node.held = None
    node.load_phase, node.load_done_bytes, node.load_total_bytes = "", 0, 0
    node.load_heard_ms = state.now_ms
    send_assignment(state, node)
    state.timers.at(state.now_ms + state.limits.load_stall_ms, TimerKind.LOAD_STALL, node.key)


def send_assignment(state: CoreState, node: NodeRecord) -> None:
    """Tell the node what to load; idempotent there."""
    assert node.model_id is not None and node.span is not None
    context_tokens = state.models[node.model_id].context_tokens_max
    state.emit(
        fx.AssignSpan(
            node_id=node.node_id,
            incarnation=node.incarnation,
            epoch=node.epoch,
            model_id=node.model_id,
            span=node.span,
            kv_tokens_min=min(state.limits.kv_tokens_min, context_tokens),
            reason=node.span_reason,
        )
    )


def fail_load(state: CoreState, node: NodeRecord, reason: Reason) -> None:
    """Back to joining, with growing pauses, and with less memory where that was the trouble."""
    limits = state.limits
    state.move_node(node, NodeTrigger.LOAD_FAILED)
    node.model_id = node.span = node.held = None
    node.span_reason, node.last_error, node.failure_code = "", reason.message, reason.code
    node.num_failures += 1
    if reason.code in MEMORY_CODES:
        node.memory_share *= SHRINK
    pause_ms = min(limits.retry_max_ms, limits.retry_ms * 2 ** (node.num_failures - 1))
    node.plan_after_ms = state.now_ms + pause_ms
    state.timers.at(node.plan_after_ms, TimerKind.RETRY, node.key)
    # Others may stand in at once.
    ask_plan(state)


def retry_due(state: CoreState, key: NodeKey) -> None:
    """The pause after a failed load is over."""
    node = state.node_at(key)
    if node is not None and node.state is NodeState.JOINING:
        ask_plan(state)


def load_stalled(state: CoreState, key: NodeKey) -> None:
    """No progress for long: the load has failed, whatever the node says later."""
    node = state.node_at(key)
    if node is None or node.state is not NodeState.LOADING:
        return
    due_ms = node.load_heard_ms + state.limits.load_stall_ms
    if due_ms > state.now_ms:
        state.timers.at(due_ms, TimerKind.LOAD_STALL, key)
        return
    fail_load(state, node, Reason(code="load_stalled", message="loading made no progress"))


def uncovered(state: CoreState) -> dict[ModelId, list[LayerSpan]]:
    """Layers, by model, that no serving or loading node holds."""
    spans: dict[ModelId, list[LayerSpan]] = {model_id: [] for model_id in state.models}
    for node in state.nodes.values():
        if is_placed(node) and node.model_id is not None and node.span is not None:
            spans[node.model_id].append(node.span)
    gaps = {m: missing_spans(s, state.models[m].num_layers) for m, s in spans.items()}
    return {model_id: missing for model_id, missing in gaps.items() if missing}


def replan_asked(state: CoreState) -> None:
    """The operator wants a fresh plan: nodes on which nothing runs may move, if it pays."""
    state.planning.wants_relaxed = True
    ask_plan(state)
