"""Machines by kind: what a plan counts instead of naming nodes."""

from dataclasses import dataclass, replace
from typing import Final

from scheduler.planning.ground import Ground, Machine

EXACT_MACHINES_MAX: Final = 9
"""Pools up to this size are planned node by node."""


@dataclass(frozen=True, slots=True)
class MachineClass:
    """Machines of one kind in one region, the best linked first, and their average."""

    members: tuple[int, ...]
    average: Machine


def link_cost_s(ground: Ground, machine: Machine, batch: float = 8.0) -> float:
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
        members = sorted(
            groups[key],
            key=lambda i: (link_cost_s(ground, ground.machines[i]), ground.machines[i].node_id),
        )
        classes.append(MachineClass(tuple(members), _average(ground, members)))
    return classes


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
    )
