"""Machines by kind: what a plan counts instead of naming nodes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduler.planning.ground import Ground, Machine

EXACT_MACHINES_MAX: Final = 9
"""Pools up to this size are planned node by node."""


SPREADS: Final = (1.3, 2.0, 1.5)
"""Rooms for weights and for KV, and seconds of a layer, may differ so much within a class."""
NO_LIMIT: Final = 1e30
"""Bytes of KV: what weights leave."""
TRANSFER_BATCH: Final = 8.0
MILE_STEP_MS: Final = 2.0


@dataclass(frozen=True, slots=True)
class MachineClass:
    """Machines of one kind in one region, the best linked first, and their average."""

    members: tuple[int, ...]
    average: Machine


def link_cost_s(ground: Ground, machine: Machine, batch: float = TRANSFER_BATCH) -> float:
    """Seconds that a machine's own links add to a trip: its last mile and its uplink."""
    transfer = ground.activation_bytes / min(machine.up_bytes_per_s, machine.down_bytes_per_s)
    return machine.last_mile_s + batch * transfer


def classify(ground: Ground, free: tuple[int, ...]) -> list[MachineClass]:
    """Classes of the machines `free`; every machine its own in a small pool."""
    groups: dict[tuple[int, str, int], list[int]] = {}
    is_exact = len(free) <= EXACT_MACHINES_MAX
    for index in free:
        machine = ground.machines[index]
        key = (machine.region, machine.kind, index if is_exact else -1)
        groups.setdefault(key, []).append(index)
    classes: list[MachineClass] = []
    for key in sorted(groups, key=str):
        for alike in _alike(ground, groups[key]):
            members = sorted(
                alike,
                key=lambda i: (link_cost_s(ground, ground.machines[i]), ground.machines[i].node_id),
            )
            classes.append(MachineClass(tuple(members), _average(ground, members)))
    return classes


def _alike(ground: Ground, members: Sequence[int]) -> list[list[int]]:
    """Machines of one name, apart where they differ by more than SPREADS: in what they have room
    for (a class counts as its least member) and in how quick they are."""
    traits = {i: _traits(ground.machines[i]) for i in members}
    is_wide = [
        max(own) > spread * min(own)
        for own, spread in zip(zip(*traits.values(), strict=True), SPREADS, strict=True)
    ]
    groups: dict[tuple[int, ...], list[int]] = {}
    for i in members:
        key = tuple(
            math.floor(math.log(trait, spread)) if wide and trait > 0.0 else 0
            for trait, spread, wide in zip(traits[i], SPREADS, is_wide, strict=True)
        )
        is_empty = tuple(int(trait <= 0.0) for trait in traits[i])
        groups.setdefault((*is_empty, *key), []).append(i)
    return [groups[key] for key in sorted(groups)]


def _traits(machine: Machine) -> tuple[float, float, float]:
    kv_bytes = NO_LIMIT if machine.kv_bytes is None else machine.kv_bytes
    return machine.room_bytes, kv_bytes, machine.curve.layer_s(1)


def cut(
    ground: Ground, classes: Sequence[MachineClass], *, machines_max: int
) -> tuple[list[MachineClass], list[list[int]]]:
    """Classes cut by their links: single machines in a pool up to `machines_max`, else by uplink
    and last mile. And for every class which of the fine ones it became."""
    is_single = sum(len(c.members) for c in classes) <= machines_max
    fine: list[MachineClass] = []
    parts: list[list[int]] = []
    for node_class in classes:
        groups: dict[tuple[float, ...], list[int]] = {}
        for index in node_class.members:
            machine = ground.machines[index]
            key: tuple[float, ...] = (float(index),)
            if not is_single:
                up_s = TRANSFER_BATCH * ground.activation_bytes / machine.up_bytes_per_s
                mile_ms = 1e3 * machine.last_mile_s
                key = (float(round(math.log2(up_s))), math.floor(mile_ms / MILE_STEP_MS))
            groups.setdefault(key, []).append(index)
        own: list[int] = []
        for key in sorted(groups):
            own.append(len(fine))
            fine.append(MachineClass(tuple(groups[key]), _average(ground, groups[key])))
        parts.append(own)
    return fine, parts


def _average(ground: Ground, members: list[int]) -> Machine:
    """Links on average (bandwidths harmonically: their inverse is what is added up), memory the
    least: what fits it fits all."""
    machines = [ground.machines[i] for i in members]
    count = len(machines)
    least = min(machines, key=lambda m: (m.room_bytes, m.node_id))
    kv = [m.kv_bytes for m in machines if m.kv_bytes is not None]
    return replace(
        least,
        kv_bytes=min(kv) if len(kv) == count else None,
        last_mile_s=sum(m.last_mile_s for m in machines) / count,
        up_bytes_per_s=count / sum(1.0 / m.up_bytes_per_s for m in machines),
        down_bytes_per_s=count / sum(1.0 / m.down_bytes_per_s for m in machines),
        loss=sum(m.loss for m in machines) / count,
    )
