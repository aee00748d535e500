"""The plan in force, and a look at the one that would follow, as HTML. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from coordinator.core.view import PlanChangeView, PlanView
from coordinator.dashboard import figures
from coordinator.dashboard.markup import banner, button, chip, facts, row, section, table, text
from coordinator.dashboard.nodes import node_link
from coordinator.dashboard.snapshot import Snapshot
from coordinator.dashboard.whatif import Change, Supposed
from coordinator.ports import PlanPreview
from scheduler.allocation.problem import AllocationProblem, Placement

CHANGES_SHOWN: Final = 5
MOVES_SHOWN: Final = 100
MOVE_HEADS: Final = (
    ("Node", ""),
    ("Holds", ""),
    ("Would hold", ""),
    ("Reads", "num"),
    ("Why", ""),
)


def draw_plan_in_force(snapshot: Snapshot) -> str:
    """The plan, how it was found, and what the last ones moved."""
    plan = snapshot.view.plan
    again = button("Plan again", "replan", confirm="Plan again now?")
    body = (
        '<p class="empty">No plan yet: it is made when nodes have measured themselves.</p>'
        if plan is None
        else _plan_facts(plan) + _changes(snapshot.view.changes)
    )
    return section("Plan", body, aside=again, id_="plan")


def _plan_facts(plan: PlanView) -> str:
    bound, objective = plan.bound_tokens_per_s, plan.objective_tokens_per_s
    gap = f"{max(0.0, bound - objective) / bound:.1%}" if bound > 0 else figures.DASH
    named = (
        ("Plan", f"#{plan.epoch}"),
        ("Solver", text(f"{plan.solver}, {plan.status}")),
        ("Objective", f"{figures.per_second(objective)} tokens/s"),
        ("Bound", f"{figures.per_second(bound)} tokens/s"),
        ("Gap", gap),
        ("Solved in", figures.milliseconds(plan.solve_ms)),
        (
            "Moved",
            f"{plan.moved_nodes} nodes, {plan.moved_bytes / 2**30:.1f} GiB to load, "
            f"{plan.fetched_bytes / 2**30:.1f} GiB of them to fetch",
        ),
    )
    warnings = "".join(f'<li class="warning">{text(warning)}</li>' for warning in plan.warnings)
    return facts(named) + (f'<ul class="warnings">{warnings}</ul>' if warnings else "")


def _changes(changes: tuple[PlanChangeView, ...]) -> str:
    """The last plans that moved something: when, why, and how much."""
    items = "".join(
        f'<li data-key="change-{change.epoch}">{chip(change.cause, "calm")} '
        f"plan #{change.epoch}: {change.moved_nodes} nodes moved, "
        f"{figures.num_bytes(change.moved_bytes)} to load, "
        f"{figures.num_bytes(change.fetched_bytes)} of them to fetch "
        f'<span class="faint">{figures.ago(change.age_ms)}</span></li>'
        for change in changes[:CHANGES_SHOWN]
    )
    return f'<ul class="departed" aria-label="What plans moved">{items}</ul>' if items else ""


def draw_what_if_form() -> str:
    """What may be supposed before a plan is looked at."""
    form = (
        '<form class="form" data-action="preview" data-keep-fields>'
        '<label>Without these nodes<input name="without" maxlength="500" autocomplete="off" '
        'placeholder="names or ids, by comma"></label>'
        '<label>With more nodes<input class="short" name="more" type="number" min="0" max="64" '
        'value="0" inputmode="numeric"></label>'
        '<label>GiB each lends<input class="short" name="memory_gib" type="number" min="0.1" '
        'max="4096" step="0.1" value="8" inputmode="decimal"></label>'
        '<label class="check"><input type="checkbox" name="busy" value="yes">'
        "As if no request ran</label>"
        '<button class="btn btn-primary">Preview</button></form>'
    )
    note = (
        "A plan is computed in a process of its own and shown; nothing moves. Nodes on which "
        "requests run keep their layers, unless you ask for a plan as if none ran."
    )
    return section("What would change if\u2026", form, description=note)


def draw_working() -> str:
    """While the planner computes."""
    return section("Preview", '<p class="empty" role="status">The planner is at work\u2026</p>')


def draw_nothing_may_move() -> str:
    """Where a replan would ask nothing."""
    said = (
        "Every node that holds layers is at work for a request, and no other waits for layers. "
        "Preview again as if no request ran, or when it is quieter."
    )
    return section("Preview", f'<p class="empty">{said}</p>')


def draw_preview(
    preview: PlanPreview,
    problem: AllocationProblem,
    supposed: Supposed,
    changes: Sequence[Change],
    snapshot: Snapshot,
) -> str:
    """What the plan would be against what is held now."""
    plan = preview.plan
    if plan is None:
        said = preview.reason.message if preview.reason is not None else "the planner said nothing"
        return section("Preview", banner("bad", "No plan", said))
    apply = (
        button("Apply: plan again", "apply", kind="primary", confirm="Move nodes now?")
        if supposed.is_as_things_are and changes
        else ""
    )
    in_force = snapshot.view.plan
    now = in_force.objective_tokens_per_s if in_force is not None else 0.0
    then = plan.objective_tokens_per_s
    gain = f" ({then / now - 1.0:+.0%})" if now > 0 else ""
    read = sum(change.read_bytes for change in changes)
    num_held = len(problem.held)
    named = (
        ("Reckoned", f"{figures.per_second(then)} tokens/s{gain}"),
        ("Plan in force", f"{figures.per_second(now)} tokens/s" if now > 0 else figures.DASH),
        ("Bound", f"{figures.per_second(plan.bound_tokens_per_s)} tokens/s"),
        ("Nodes that change", f"{len(changes)}, {num_held} hold layers now"),
        ("Weights to load", figures.num_bytes(read)),
        ("Of them to fetch", figures.num_bytes(plan.fetched_bytes)),
        ("Chains", str(len(plan.pipelines))),
        ("Solver", text(f"{plan.solver}, {plan.status}, {plan.solve_ms} ms")),
    )
    warnings = "".join(f'<li class="warning">{text(warning)}</li>' for warning in plan.warnings)
    body = facts(named) + (f'<ul class="warnings">{warnings}</ul>' if warnings else "")
    return section(
        "Preview", body + _moves(changes, snapshot), aside=apply, description=_how(supposed)
    )


def _how(supposed: Supposed) -> str:
    if supposed.is_as_things_are:
        return (
            "Applying asks for this plan anew; it comes out the same unless the network changes "
            "meanwhile."
        )
    parts = []
    if supposed.without:
        parts.append(f"drain {len(supposed.without)} nodes on their pages")
    if supposed.num_more:
        parts.append("hand out enrolment tokens")
    if supposed.may_move_busy:
        parts.append("plan again when it is quieter")
    return f"Supposed only. To have it so: {text(', '.join(parts))}."


def _moves(changes: Sequence[Change], snapshot: Snapshot) -> str:
    if not changes:
        return '<p class="empty">No node would hold anything else than it does now.</p>'
    is_named = len(snapshot.view.models) > 1
    rows = (
        row(change.node_id, MOVE_HEADS, _move_cells(change, snapshot.names, is_named=is_named))
        for change in changes[:MOVES_SHOWN]
    )
    hidden = len(changes) - MOVES_SHOWN
    more = f'<p class="empty">{figures.count(hidden)} more.</p>' if hidden > 0 else ""
    return table("What would move", MOVE_HEADS, rows, empty="") + more


def _move_cells(change: Change, names: Mapping[str, str], *, is_named: bool) -> tuple[str, ...]:
    is_known = change.node_id in names
    return (
        node_link(names, change.node_id) if is_known else text(change.node_id),
        _held(change.before, "nothing", is_named=is_named),
        _held(change.after, "stands by", is_named=is_named),
        figures.num_bytes(change.read_bytes) if change.read_bytes else figures.DASH,
        text(change.after.reason) if change.after is not None else "the plan needs it no more",
    )


def _held(placement: Placement | None, nothing: str, *, is_named: bool) -> str:
    if placement is None:
        return f'<span class="faint">{nothing}</span>'
    span = figures.layers((placement.span.start, placement.span.end))
    return f"layers {span}" + (f" of {text(placement.model_id)}" if is_named else "")
