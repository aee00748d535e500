"""What the first page shows of a snapshot, as HTML. Pure."""

from typing import Final

from coordinator.core.view import ModelView
from coordinator.dashboard import figures
from coordinator.dashboard.markup import banner, chip, facts, section, sparkline, text
from coordinator.dashboard.plan import draw_plan_in_force
from coordinator.dashboard.requests import OPEN_STATES
from coordinator.dashboard.snapshot import Snapshot
from plait.wire.telemetry import PresenceState

DEPARTED_SHOWN: Final = 8
DEPARTED_SHOWN_MS: Final = 600_000


def draw_headline(snapshot: Snapshot) -> str:
    """The page's title, for who cannot see it, and whether the network can serve."""
    return f'<h1 class="unseen">Overview</h1>{_headline(snapshot)}'


def _headline(snapshot: Snapshot) -> str:
    view = snapshot.view
    if not view.nodes:
        return banner("warn", "No node yet", "Create an enrolment token and hand out its line.")
    waiting = [model for model in view.models if not model.is_ready]
    if waiting:
        return "".join(_missing_banner(model) for model in waiting)
    serving = sum(node.state == "serving" for node in view.nodes)
    models = ", ".join(model.model_id for model in view.models)
    return banner("ok", f"Serving {models}", f"{serving} of {len(view.nodes)} nodes serve.")


def draw_plan(snapshot: Snapshot) -> str:
    """The plan in force beside the link that brings telemetry."""
    return f'<div class="pair">{draw_plan_in_force(snapshot)}{draw_telemetry(snapshot)}</div>'


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


def draw_telemetry(snapshot: Snapshot) -> str:
    """The link that brings telemetry, and who left lately."""
    health = snapshot.health
    if health is None:
        return ""
    state = chip("connected", "ok") if health.is_connected else chip("broker away", "bad")
    dropped = ", ".join(f"{count} {reason}" for reason, count in health.dropped) or "none"
    named = (("Messages", figures.count(health.messages_total)), ("Refused", text(dropped)))
    body = facts(named) + _departed(snapshot)
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
        f'<span class="faint">{figures.ago(heard.presence_age_ms)}</span></li>'
        for heard in gone[:DEPARTED_SHOWN]
    )
    return f'<ul class="departed">{items}</ul>' if items else ""


def _tile(name: str, value: str, counter: str, note: str = "", *, tone: str = "") -> str:
    kind = f" tile-{tone}" if tone else ""
    return (
        f'<div class="tile{kind}"><span class="tile-name">{text(name)}</span>'
        f'<span class="tile-value" data-counter="{counter}">{text(value)}</span>'
        f'<span class="tile-note">{text(note)}</span></div>'
    )


def _missing_banner(model: ModelView) -> str:
    tone = "bad" if model.missing_bytes else "warn"
    said = model.lack or "Its layers are being loaded."
    return banner(tone, f"{model.model_id} is not ready", f"{said[0].upper()}{said[1:]}")
