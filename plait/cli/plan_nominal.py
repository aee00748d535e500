"""Reads pools of nominal figures: devices by spec sheet, round trips by region, models in bytes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from plait.cli.plan_fields import Table, count, entries, number, sub_table
from plait.cli.plan_group import grouped_device, join_devices, mean_session_s, tensor_group
from plait.errors import ConfigError
from scheduler.planning.ground import Ground
from scheduler.planning.roofline import Device, ModelFigures, Rules, machine_of

NEAR_RTT_MS: Final = 10.0
FAR_RTT_MS: Final = 150.0
NODES_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class NominalPool:
    """What is planned, the model's name, and what had to be assumed."""

    ground: Ground
    model: str
    notes: tuple[str, ...]


def is_nominal(table: Table) -> bool:
    """A pool of devices and models, told by its fields."""
    return "region_rtt_ms" in table or "models" in table


def read_nominal(table: Table, where: str, model: str | None) -> NominalPool:
    """The pool as the planner sees it. Raises ConfigError that names the field."""
    models = sub_table(table, "models", where)
    name, figures = _model(models, where, model)
    nodes = entries(table, "nodes", where)
    if len(nodes) > NODES_MAX:
        raise ConfigError(f"{where}: more than {NODES_MAX} nodes")
    names = sorted({_text(node, "region", f"{where}: nodes[{i}]") for i, node in enumerate(nodes)})
    notes: list[str] = []
    rtt_s = _round_trips(table.get("region_rtt_ms", {}), names, where, notes)
    seen: set[str] = set()
    ranks: list[Device] = []
    places: dict[str, str] = {}
    for index, node in enumerate(nodes):
        device = _device(node, f"{where}: nodes[{index}]", names)
        if device.node_id in seen:
            raise ConfigError(f"{where}: the id {device.node_id!r} is used twice")
        seen.add(device.node_id)
        places[device.node_id] = f"{where}: nodes[{index}]"
        ranks.append(device)
    devices, group_places = join_devices(table, ranks, where)
    places |= group_places
    for device in devices:
        _refuse_indivisible(device, sub_table(models, name, where), name, places[device.node_id])
    rules = Rules()
    ground = Ground(
        num_layers=figures.num_layers,
        activation_bytes=figures.activation_bytes,
        regions=tuple(names),
        region_rtt_s=rtt_s,
        machines=tuple(machine_of(device, figures, rules) for device in devices),
    )
    return NominalPool(ground, name, tuple(notes))


def _model(models: Table, where: str, wanted: str | None) -> tuple[str, ModelFigures]:
    known = ", ".join(sorted(models))
    if wanted is None:
        if len(models) != 1:
            raise ConfigError(f"{where}: which model? --model is one of {known}")
        wanted = next(iter(models))
    if wanted not in models:
        raise ConfigError(f"{where}: no model {wanted!r}; known: {known}")
    place = f"{where}: models.{wanted}"
    figures = sub_table(models, wanted, f"{where}: models")
    return wanted, ModelFigures(
        num_layers=count(figures, "layers", place),
        hidden=count(figures, "hidden", place),
        vocab=count(figures, "vocab", place),
        layer_bytes=number(figures, "layer_bytes", place),
        kv_bytes=number(figures, "kv_bytes", place),
        layer_flops=number(figures, "layer_flops", place),
        embedding_bytes=number(figures, "embedding_bytes", place),
    )


def _device(node: Table, where: str, regions: Sequence[str]) -> Device:
    mile_ms = node.get("last_mile_ms", 0.0)
    is_number = isinstance(mile_ms, int | float) and not isinstance(mile_ms, bool)
    if not isinstance(mile_ms, int | float) or not is_number or not 0.0 <= mile_ms < math.inf:
        raise ConfigError(f"{where}: `last_mile_ms` must be a finite number, 0 or above")
    kind = node.get("gpu", "node")
    memory = number(node, "memory_bytes", where)
    flops = number(node, "flops", where)
    bandwidth = number(node, "memory_bytes_per_s", where)
    group, session_s = tensor_group(node, where), mean_session_s(node, where)
    stays = "" if session_s is None else f", up {session_s / 3600:.3g} h"
    rank = Device(
        node_id=_text(node, "id", where),
        # Two devices are alike when their figures are, whatever they are called.
        kind=f"{kind} {memory / 2**30:.0f} GiB {bandwidth / 1e9:.0f} GB/s {flops / 1e12:.0f} TF"
        + stays,
        region=regions.index(_text(node, "region", where)),
        last_mile_s=mile_ms / 1e3,
        up_bytes_per_s=number(node, "up_bytes_per_s", where),
        down_bytes_per_s=number(node, "down_bytes_per_s", where),
        memory_bytes=memory,
        flops_per_s=flops,
        memory_bytes_per_s=bandwidth,
        mean_session_s=session_s,
    )
    return grouped_device(rank, group)


def _refuse_indivisible(device: Device, model: Table, name: str, where: str) -> None:
    """A group's ranks share heads equally; where the file says none, they are taken to fit."""
    for field in ("heads", "kv_heads"):
        if device.group is not None and field in model:
            heads = count(model, field, f"models.{name}")
            if heads % device.group.degree:
                raise ConfigError(
                    f"{where}: {heads} {field} of {name} cannot be divided among "
                    f"{device.group.degree} ranks"
                )


def _text(node: Table, name: str, where: str) -> str:
    value = node.get(name)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: it needs `{name}`, a name")
    return value


def _round_trips(
    table: object, names: Sequence[str], where: str, notes: list[str]
) -> tuple[tuple[float, ...], ...]:
    """Seconds between regions. What is missing is assumed, what is asymmetric the larger of the
    two; both are noted."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: `region_rtt_ms` must be a table of round trips")
    known: dict[tuple[str, str], float] = {}
    for key in table:
        parts = str(key).split("|")
        if len(parts) != 2:
            raise ConfigError(f'{where}: region_rtt_ms.{key!r} is not "one|other"')
        known[parts[0], parts[1]] = number(table, key, f"{where}: region_rtt_ms")
    mentioned = {name for pair in known for name in pair}
    strangers = [name for name in names if known and name not in mentioned]
    if strangers:
        raise ConfigError(
            f"{where}: unknown region {strangers[0]!r}; `region_rtt_ms` knows "
            f"{', '.join(sorted(mentioned))}"
        )
    longest = max(known.values(), default=FAR_RTT_MS)

    def between(a: str, b: str) -> float:
        there, back = known.get((a, b)), known.get((b, a))
        if there is None and back is None:
            assumed = NEAR_RTT_MS if a == b else longest
            if a <= b:
                notes.append(f"no round trip {a}|{b} is given: {assumed:g} ms assumed")
            return assumed
        if there is not None and back is not None and there != back:
            if a <= b:
                notes.append(
                    f"round trips {a}|{b} and {b}|{a} differ: {max(there, back):g} ms assumed"
                )
            return max(there, back)
        return there if there is not None else back or 0.0

    return tuple(tuple(between(a, b) / 1e3 for b in names) for a in names)
