"""Models as HTML: whether each is served, what is on its way, what it lacks. Pure."""

from collections.abc import Mapping
from typing import Final

from coordinator.core.view import ModelView, NodeView
from coordinator.dashboard import figures
from coordinator.dashboard.layers import bottleneck, draw_strip, holders_of
from coordinator.dashboard.markup import banner, chip, facts, link, meter, row, section, table, text
from coordinator.dashboard.paging import address
from coordinator.dashboard.snapshot import Snapshot
from plait.types import DType, ModelSpec

MODEL_HEADS: Final = (
    ("Model", ""),
    ("State", ""),
    ("Nodes", "num"),
    ("Replicas", "num"),
    ("Demand", "num"),
    ("On its way", ""),
    ("What it needs", ""),
)


def draw_model_list(snapshot: Snapshot, specs: Mapping[str, ModelSpec]) -> str:
    """All models in a table, then each with its layers."""
    view = snapshot.view
    rows = (
        row(model.model_id, MODEL_HEADS, _cells(model, holders_of(view, model)))
        for model in view.models
    )
    empty = "No model is served: start the coordinator with --model."
    listed = section("Served", table("Models", MODEL_HEADS, rows, empty=empty))
    return listed + "".join(_model(snapshot, model, specs) for model in view.models)


def _cells(model: ModelView, holders: list[NodeView]) -> tuple[str, ...]:
    serving = sum(node.state == "serving" for node in holders)
    needs = model.lack or model.advice
    fewest, most = min(model.replicas_per_layer, default=0), max((*model.replicas_per_layer, 0))
    demand = f"{model.demand_share:.0%}"
    how = "set" if model.is_demand_given else "observed"
    return (
        f'<span class="cell-name">{text(model.model_id)}</span>'
        f'<span class="cell-note">{text(model.architecture)}, {model.num_layers} layers</span>',
        chip("ready", "ok") if model.is_ready else chip("not ready", "bad"),
        f"{serving} of {len(holders)}" if holders else figures.DASH,
        f"{fewest}\u2013{most}" if fewest != most else str(fewest),
        demand + f'<span class="cell-note">{how}</span>',
        _loading(holders),
        text(_sentence(needs)) or '<span class="faint">nothing</span>',
    )


def _loading(holders: list[NodeView]) -> str:
    """All nodes that load, as one bar."""
    loading = [node for node in holders if node.state == "loading"]
    if not loading:
        return '<span class="faint">nothing</span>'
    done = sum(node.load_done_bytes for node in loading)
    total = sum(node.load_total_bytes for node in loading)
    nodes = "1 node" if len(loading) == 1 else f"{len(loading)} nodes"
    if total <= 0:
        return f"{nodes} about to load"
    phases = ", ".join(sorted({node.load_phase for node in loading if node.load_phase}))
    label = f"{nodes}, {phases}: {figures.num_bytes(done)} of {figures.num_bytes(total)}"
    return meter(done, total, label, tone="busy")


def _model(snapshot: Snapshot, model: ModelView, specs: Mapping[str, ModelSpec]) -> str:
    head = ""
    if not model.is_ready:
        said = _sentence(model.lack or "Its layers are being loaded.")
        tone = "bad" if model.missing_bytes else "warn"
        head = banner(tone, f"{model.model_id} is not ready", said)
    spec = specs.get(model.model_id)
    strip = draw_strip(snapshot.view, model)
    return head + strip + (_shape(snapshot, model, spec) if spec is not None else "")


def _shape(snapshot: Snapshot, model: ModelView, spec: ModelSpec) -> str:
    """What it takes to hold it, in the narrowest type that its nodes compute in."""
    dtypes = {n.compute_dtype for n in holders_of(snapshot.view, model) if n.compute_dtype}
    dtype = DType(min(dtypes)) if dtypes else DType.FLOAT32
    layer_bytes = spec.layer_bytes(dtype)
    whole = spec.weight_bytes(spec.whole, dtype)
    slow = bottleneck(snapshot.view, model)
    named = (
        ("Weights in all", figures.num_bytes(whole)),
        ("A layer", figures.num_bytes(layer_bytes)),
        ("KV of a token", figures.num_bytes(spec.kv_bytes_per_token(spec.num_layers, dtype))),
        ("Reckoned in", text(dtype)),
        ("Weights kept", text(spec.weight_format)),
        ("Context", f"{figures.count(model.context_tokens_max)} tokens"),
        ("Chains at least", str(model.replicas_min)),
        (
            "Slowest layers",
            f"{figures.layers((slow.start, slow.end))}, "
            f"{figures.per_second(slow.tokens_per_s)} tokens/s"
            if slow
            else figures.DASH,
        ),
    )
    more = link(address("nodes", model=model.model_id), "Its nodes")
    ask = link(address("requests", model=model.model_id), "Its requests")
    return section(f"What {model.model_id} takes", facts(named), aside=f"{more} {ask}")


def _sentence(said: str) -> str:
    return f"{said[0].upper()}{said[1:]}" if said else ""
