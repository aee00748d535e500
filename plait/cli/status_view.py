"""A snapshot of the network for a terminal: what the dashboard shows, in the same words."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from plait.cli.fields import NOTHING, Fields
from plait.cli.status_parts import (
    DASH,
    OPEN_STATES,
    STYLES,
    figure,
    layers,
    lined_table,
    millis,
    node_complaint,
    node_name,
    node_order,
    node_state,
    percent,
)

REQUESTS_SHOWN: Final = 15
CHANGES_SHOWN: Final = 3
ID_COLUMNS: Final = 8
STRIP_COLUMNS: Final = 64
NO_NODE: Final = "no node has joined: `plait token create` makes the line that lets one in"


def draw(view: Fields, *, requests_max: int = REQUESTS_SHOWN) -> RenderableType:
    """Everything, and the newest requests."""
    parts: list[RenderableType] = [headline(view), Text()]
    for model in view.many("models"):
        parts += [_model(model), Text()]
    parts += [_nodes(view), Text()]
    if view.many("requests"):
        parts += [requests_table(view, requests_max), Text()]
    parts += [_plan(view), counters_line(view)]
    return Group(*parts)


def headline(view: Fields, *, is_short: bool = False) -> Text:
    nodes = view.many("nodes")
    serving = sum(node.text("state") == "serving" for node in nodes)
    line = Text()
    line.append("plait ", style="bold")
    network_id = view.text("network_id")
    line.append(network_id[:ID_COLUMNS] if is_short else network_id, style="dim")
    line.append(f"  {serving} of {len(nodes)} nodes serve")
    return line


def _model(model: Fields) -> Group:
    title = Text(model.text("model_id"), style="bold")
    title.append(f"  {model.count('num_layers')} layers, ", style="not bold dim")
    title.append("ready", style="green") if model.flag("is_ready") else title.append(
        "not ready", style="bold red"
    )
    title.append(f"{_demand(model)}; nodes that hold each layer:", style="not bold dim")
    parts: list[RenderableType] = [title, strip(model.counts("replicas_per_layer"))]
    if model.text("lack"):
        parts.append(Text(model.text("lack"), style="red"))
    return Group(*parts)


def _demand(model: Fields) -> str:
    """The model's part of the network; nothing where it has all of it."""
    share = model.maybe("demand_share")
    if share is None or share >= 1.0:
        return ""
    how = "set" if model.flag("is_demand_given") else "observed"
    least = model.count("replicas_min")
    return f", {100 * share:.0f} % of demand ({how})" + (
        f", at least {least} chains" if least > 1 else ""
    )


def strip(replicas_per_layer: Sequence[int]) -> Text:
    """One character per layer, the number of its replicas; 0 stands out. Folds long models."""
    line = Text()
    for layer, replicas in enumerate(replicas_per_layer):
        if layer and layer % STRIP_COLUMNS == 0:
            line.append("\n")
        symbol = str(replicas) if replicas < 10 else "+"
        style = "bold white on red" if replicas == 0 else "black on green"
        line.append(symbol, style=style if replicas < 2 else "black on bright_green")
    return line


def _nodes(view: Fields) -> RenderableType:
    table = lined_table(
        ("node", "left"),
        ("state", "left"),
        ("layers", "right"),
        ("ms/layer", "right"),
        ("stage ms", "right"),
        ("off by", "right"),
        ("rtt ms", "right"),
        ("kv", "right"),
        ("tokens", "right"),
        rest="device",
    )
    for node in sorted(view.many("nodes"), key=node_order):
        state = node.text("state")
        table.add_row(
            Text(node_name(node)),
            Text(node_state(node), style=STYLES.get(state, "")),
            layers(node.span("span")),
            figure(node.number("decode_layer_ms")),
            figure(node.number("stage_ms")),
            _errors(node),
            figure(node.number("coordinator_rtt_ms")),
            percent(node.count("kv_tokens_reserved"), node.count("kv_tokens_max")),
            f"{node.count('tokens_total'):,}",
            Text(node.text("device_name") or node.text("device_kind")),
        )
    if not view.many("nodes"):
        return Text(NO_NODE, style="yellow")
    errors = [
        Text(f"{node_name(node)}: {error}", style="red")
        for node in view.many("nodes")
        if (error := node.text("last_error"))
    ]
    errors += [
        Text(f"{node_name(node)}: {complaint}", style="yellow")
        for node in view.many("nodes")
        if (complaint := node_complaint(node))
    ]
    idle = [
        Text(f"{node_name(node)}: {state}: {node.text('span_reason')}", style=STYLES[state])
        for state in ("paused", "standby")
        for node in view.many("nodes")
        if node.text("state") == state
    ]
    return Group(table, *errors, *idle)


def lines_beside_requests(view: Fields) -> int:
    """About how many lines `draw` takes for all but the requests."""
    layers_max = max((model.count("num_layers") for model in view.many("models")), default=0)
    per_model = 5 + layers_max // STRIP_COLUMNS
    return 9 + per_model * len(view.many("models")) + len(view.many("nodes"))


def requests_table(view: Fields, requests_max: int, *, only_open: bool = False) -> Table:
    names = {
        node.text("node_id"): node_name(node)
        for node in (*view.many("departed"), *view.many("nodes"))
    }
    table = lined_table(
        ("request", "left"),
        ("state", "left"),
        ("tokens", "right"),
        ("ttft", "right"),
        ("tokens/s", "right"),
        rest="route",
    )
    shown = [r for r in view.many("requests") if not only_open or r.text("state") in OPEN_STATES]
    for request in sorted(shown, key=_recency)[:requests_max]:
        state = request.text("state")
        route = " > ".join(
            f"{names.get(hop.text('node_id'), hop.text('node_id'))} {layers(hop.span('span'))}"
            for hop in request.many("route")
        )
        table.add_row(
            Text(request.text("request_id")[:ID_COLUMNS]),
            Text(request.text("finish_reason") or state, style=STYLES.get(state, "")),
            f"{request.count('num_generated')}/{request.count('max_new_tokens')}",
            millis(request.maybe("ttft_ms")),
            f"{request.number('tokens_per_s'):.1f}" if request.number("tokens_per_s") else DASH,
            Text(route or request.text("reason") or DASH),
        )
    return table


def _recency(request: Fields) -> tuple[bool, int]:
    """Open ones first. The view has the last to end first, and their age ended with them."""
    is_open = request.text("state") in OPEN_STATES
    return not is_open, request.count("age_ms") if is_open else 0


def _plan(view: Fields) -> Text:
    plan = view.one("plan")
    if plan is None:
        return Text("no plan yet", style="dim")
    line = Text(f"plan #{plan.count('epoch')}", style="bold")
    line.append(
        f"  {plan.text('solver')}, {plan.text('status')}, "
        f"{plan.number('objective_tokens_per_s'):.1f} tokens/s of at most "
        f"{plan.number('bound_tokens_per_s'):.1f}, solved in {plan.count('solve_ms')} ms",
        style="not bold",
    )
    moved_bytes = plan.number("moved_bytes")
    if moved_bytes:
        line.append(
            f"; {moved_bytes / 2**30:.1f} GiB to load, "
            f"{plan.number('fetched_bytes') / 2**30:.1f} GiB of them to fetch, "
            f"{plan.count('moved_nodes')} nodes moved",
            style="not bold",
        )
    for warning in plan.texts("warnings"):
        line.append(f"\n  {warning}", style="not bold yellow")
    for change in view.many("changes")[:CHANGES_SHOWN]:
        line.append(f"\n  {_change(change)}", style="not bold dim")
    return line


def _change(change: Fields) -> str:
    """A plan that moved something, as `2 min ago, repair: ...`."""
    seconds = change.count("age_ms") // 1_000
    age = f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"
    return (
        f"{age} ago, {change.text('cause')} (plan #{change.count('epoch')}): "
        f"{change.count('moved_nodes')} nodes moved, {change.number('moved_bytes') / 2**30:.2f} "
        f"GiB to load, {change.number('fetched_bytes') / 2**30:.2f} GiB of them to fetch"
    )


def counters_line(view: Fields) -> Text:
    counters = view.one("counters") or Fields(NOTHING)
    line = Text("since start", style="bold")
    line.append(
        f"  {counters.count('tokens_generated'):,} tokens; "
        f"requests: {counters.count('requests_finished')} finished, "
        f"{counters.count('requests_failed')} failed, "
        f"{counters.count('requests_refused')} refused, "
        f"{counters.count('requests_cancelled')} cancelled, {view.count('num_queued')} queued, "
        f"{counters.count('routes_broken')} routes broken",
        style="not bold",
    )
    return line


def _errors(node: Fields) -> str:
    """How far predicted times are from observed ones: of decoding, of prompts."""
    errors = (node.maybe("decode_error_percent"), node.maybe("prefill_error_percent"))
    if errors == (None, None):
        return DASH
    return " / ".join(DASH if error is None else f"{error:+.0f} %" for error in errors)
