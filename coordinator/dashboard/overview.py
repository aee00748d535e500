"""What the first page shows of a snapshot, as HTML. Pure."""

from typing import Final

from coordinator.core.view import ModelView, PlanChangeView, PlanView, RequestView
from coordinator.dashboard import figures
from coordinator.dashboard.markup import button, chip, meter, row, section, sparkline, table, text
from coordinator.dashboard.snapshot import Snapshot
from plait.wire.telemetry import PresenceState

REQUESTS_SHOWN: Final = 20
CHANGES_SHOWN: Final = 5
DEPARTED_SHOWN: Final = 8
DEPARTED_SHOWN_MS: Final = 600_000
OPEN_STATES: Final = ("queued", "opening", "prefill", "decode")
REQUEST_TONES: Final = {
    "queued": "warn",
    "opening": "busy",
    "prefill": "busy",
    "decode": "ok",
    "finished": "calm",
    "failed": "bad",
    "cancelled": "calm",
}
REQUEST_HEADS: Final = (
    ("Request", ""),
    ("State", ""),
    ("Route", ""),
    ("Tokens", ""),
    ("TTFT", "num"),
    ("Tokens/s", "num"),
    ("Time", "num"),
)


def draw_headline(snapshot: Snapshot) -> str:
    """Whether the network can serve, in a sentence."""
    view = snapshot.view
    if not view.nodes:
        return _banner("warn", "No node yet", "Create an enrolment token and hand out its line.")
    waiting = [model for model in view.models if not model.is_ready]
    if waiting:
        return "".join(_missing_banner(model) for model in waiting)
    serving = sum(node.state == "serving" for node in view.nodes)
    models = ", ".join(model.model_id for model in view.models)
    return _banner("ok", f"Serving {models}", f"{serving} of {len(view.nodes)} nodes serve.")


def draw_tiles(snapshot: Snapshot) -> str:
    """The counters."""
    view, counters = snapshot.view, snapshot.view.counters
    num_open = sum(request.state in OPEN_STATES for request in view.requests)
    serving = sum(node.state == "serving" for node in view.nodes)
    pipelines = sum(request.state in ("prefill", "decode") for request in view.requests)
    live = (
        '<div class="tile tile-wide"><div class="tile-main"><span class="tile-name">Tokens per '
        f'second</span><span class="tile-value" data-counter="tokens_per_s">'
        f"{figures.per_second(snapshot.tokens_per_s)}</span></div>"
        f"{sparkline(snapshot.history)}</div>"
    )
    refused = f", refused: {counters.requests_refused}" if counters.requests_refused else ""
    tiles = (
        _tile("Tokens generated", figures.count(counters.tokens_generated), "tokens_generated"),
        _tile("Nodes serving", f"{serving} / {len(view.nodes)}", "nodes_serving"),
        _tile("Open pipelines", figures.count(pipelines), "pipelines"),
        _tile(
            "Open requests", figures.count(num_open), "requests_open", f"queued: {view.num_queued}"
        ),
        _tile(
            "Finished",
            figures.count(counters.requests_finished),
            "requests_finished",
            f"cancelled: {counters.requests_cancelled}{refused}",
        ),
        _tile(
            "Failed",
            figures.count(counters.requests_failed),
            "requests_failed",
            f"routes broken: {counters.routes_broken}",
            tone="bad" if counters.requests_failed else "",
        ),
    )
    return f'<div class="tiles">{live}{"".join(tiles)}</div>'


def draw_requests(snapshot: Snapshot) -> str:
    """Open requests first, then those that ended lately; the newest first among both."""
    names = snapshot.names
    ordered = sorted(snapshot.view.requests, key=_recency)
    rows = (
        row(f"{request.request_id}", REQUEST_HEADS, _request_cells(request, names))
        for request in ordered[:REQUESTS_SHOWN]
    )
    hidden = len(ordered) - REQUESTS_SHOWN
    aside = f"{hidden} more not shown" if hidden > 0 else ""
    body = table("Requests", REQUEST_HEADS, rows, empty="No request has come in yet.")
    return section("Requests", body, aside=aside, id_="requests")


def _recency(request: RequestView) -> tuple[bool, int]:
    """The view has the last to end first, and an age that ends with the request is no recency."""
    is_open = request.state in OPEN_STATES
    return not is_open, request.age_ms if is_open else 0


def draw_plan(snapshot: Snapshot) -> str:
    """The plan in force, and the link that brings telemetry."""
    plan = snapshot.view.plan
    again = button("Plan again", "replan", confirm="Plan again now?")
    body = (
        '<p class="empty">No plan yet: it is made when nodes have measured themselves.</p>'
        if plan is None
        else _plan_facts(plan) + _changes(snapshot.view.changes)
    )
    panels = section("Plan", body, aside=again, id_="plan") + _telemetry(snapshot)
    return f'<div class="pair">{panels}</div>'


def _plan_facts(plan: PlanView) -> str:
    bound, objective = plan.bound_tokens_per_s, plan.objective_tokens_per_s
    gap = f"{max(0.0, bound - objective) / bound:.1%}" if bound > 0 else figures.DASH
    facts = (
        ("Plan", f"#{plan.epoch}"),
        ("Solver", f"{plan.solver}, {plan.status}"),
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
    return _facts(facts) + (f'<ul class="warnings">{warnings}</ul>' if warnings else "")


def _changes(changes: tuple[PlanChangeView, ...]) -> str:
    """The last plans that moved something: when, why, and how much."""
    items = "".join(
        f'<li data-key="change-{change.epoch}">{chip(change.cause, "calm")} '
        f"plan #{change.epoch}: {change.moved_nodes} nodes moved, "
        f"{figures.num_bytes(change.moved_bytes)} to load, "
        f"{figures.num_bytes(change.fetched_bytes)} of them to fetch "
        f'<span class="faint">{_ago(change.age_ms)}</span></li>'
        for change in changes[:CHANGES_SHOWN]
    )
    return f'<ul class="departed" aria-label="What plans moved">{items}</ul>' if items else ""


def _telemetry(snapshot: Snapshot) -> str:
    health = snapshot.health
    if health is None:
        return ""
    state = chip("connected", "ok") if health.is_connected else chip("broker away", "bad")
    dropped = ", ".join(f"{count} {reason}" for reason, count in health.dropped) or "none"
    facts = (("Messages", figures.count(health.messages_total)), ("Refused", dropped))
    body = _facts(facts) + _departed(snapshot)
    return section("Telemetry", body, aside=state, id_="telemetry")


def _departed(snapshot: Snapshot) -> str:
    """Nodes that said goodbye, or were cut off, within the last minutes."""
    attached = {node.node_id for node in snapshot.view.nodes}
    gone = [
        heard
        for node_id, heard in snapshot.telemetry.items()
        if node_id not in attached
        and heard.presence in (PresenceState.LOST, PresenceState.LEFT)
        and heard.presence_age_ms is not None
        and heard.presence_age_ms < DEPARTED_SHOWN_MS
    ]
    gone.sort(key=lambda heard: heard.presence_age_ms or 0)
    items = "".join(
        f'<li data-key="{text(heard.node_id)}">'
        f"{chip(str(heard.presence), 'bad' if heard.presence is PresenceState.LOST else 'calm')} "
        f"{text(snapshot.names.get(heard.node_id, heard.node_id))} "
        f'<span class="faint">{_ago(heard.presence_age_ms)}</span></li>'
        for heard in gone[:DEPARTED_SHOWN]
    )
    return f'<ul class="departed">{items}</ul>' if items else ""


def _facts(facts: tuple[tuple[str, str], ...]) -> str:
    drawn = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(fact)}</dd></div>" for name, fact in facts
    )
    return f'<dl class="facts">{drawn}</dl>'


def _tile(name: str, value: str, counter: str, note: str = "", *, tone: str = "") -> str:
    kind = f" tile-{tone}" if tone else ""
    return (
        f'<div class="tile{kind}"><span class="tile-name">{text(name)}</span>'
        f'<span class="tile-value" data-counter="{counter}">{text(value)}</span>'
        f'<span class="tile-note">{text(note)}</span></div>'
    )


def _banner(tone: str, title: str, sentence: str) -> str:
    role = "alert" if tone == "bad" else "status"
    return (
        f'<div class="banner banner-{tone}" role="{role}"><strong>{text(title)}</strong>'
        f"<span>{text(sentence)}</span></div>"
    )


def _missing_banner(model: ModelView) -> str:
    tone = "bad" if model.missing_bytes else "warn"
    said = model.lack or "Its layers are being loaded."
    return _banner(tone, f"{model.model_id} is not ready", f"{said[0].upper()}{said[1:]}")


def _request_cells(request: RequestView, names: dict[str, str]) -> tuple[str, ...]:
    hops = "".join(
        f'<li title="{text(hop.node_id)}">{text(names.get(hop.node_id, hop.node_id))} '
        f"<span>{figures.layers(hop.span)}</span></li>"
        for hop in request.route
    )
    state = chip(request.finish_reason or request.state, REQUEST_TONES.get(request.state, "calm"))
    why = f'<span class="cell-note">{text(request.reason)}</span>' if request.reason else ""
    retried = f'<span class="cell-note">epoch {request.epoch}</span>' if request.epoch > 1 else ""
    label = f"{request.num_generated} of {request.max_new_tokens}"
    return (
        f'<span class="mono">{text(request.request_id)}</span>'
        f'<span class="cell-note">{text(request.model_id)}, {request.prompt_tokens} in</span>',
        state + why + retried,
        f'<ol class="route">{hops}</ol>' if hops else figures.DASH,
        meter(request.num_generated, request.max_new_tokens, label),
        figures.milliseconds(request.ttft_ms),
        figures.per_second(request.tokens_per_s) if request.tokens_per_s > 0 else figures.DASH,
        figures.age(request.age_ms)
        if request.total_ms is None
        else figures.milliseconds(request.total_ms),
    )


def _ago(age_ms: int | None) -> str:
    age = figures.age(age_ms)
    return age if age in ("now", figures.DASH) else f"{age} ago"
