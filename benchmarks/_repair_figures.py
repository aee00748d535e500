"""Repairs of pools of 32 nodes: every node leaves once; then again with an equal spare at hand.

Kept is what the repaired plan carries of what the whole plan carried. Times are CPU seconds.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.console import Console

from plait.cli.plan_nominal import read_nominal
from scheduler.planning.check import pool_violations
from scheduler.planning.ground import Ground, Machine, Wish
from scheduler.planning.pool import plan_pool
from scheduler.planning.repair import Repaired, Standing, repair_pool, standing_of

Figures = list[dict[str, object]]
GIB: Final = 1 << 30
NODES: Final = 32
KEPT_MIN: Final = {"72b-int4": 0.95, "32b": 0.965}
MOVED_MAX: Final = 7
CPU_S_MAX: Final = 0.2
SEEDS: Final = range(4)


@dataclass(frozen=True, slots=True)
class _Loss:
    """One node lost: the repair, what it kept, and how long it took."""

    node_id: str
    num_survivors: int
    repaired: Repaired
    kept: float
    cpu_s: float


def repairs(pool: Mapping[str, object], console: Console) -> Figures:
    """Every model with a bar: each node lost, the averages, and whether they hold."""
    rows: Figures = []
    models = pool["models"]
    for model in sorted(models) if isinstance(models, dict) else ():
        least = next((bar for part, bar in KEPT_MIN.items() if part in model), None)
        if least is None:
            continue
        ground = read_nominal(pool, str(NODES), model).ground
        standing = standing_of(ground, plan_pool(ground, Wish()))
        lost = _losses(ground, standing, has_spare=False)
        spared = _losses(ground, standing, has_spare=True)
        rows += [_row(model, loss, spare) for loss, spare in zip(lost, spared, strict=True)]
        _verdict(console, model, lost, spared, least)
    return rows


def spread(pools: Sequence[Mapping[str, object]]) -> Figures:
    """Averages over other pools of the kind."""
    rows: Figures = []
    for number, pool in enumerate(pools):
        models = pool["models"]
        for model in sorted(models) if isinstance(models, dict) else ():
            if not any(part in model for part in KEPT_MIN):
                continue
            ground = read_nominal(pool, str(NODES), model).ground
            standing = standing_of(ground, plan_pool(ground, Wish()))
            lost = _losses(ground, standing, has_spare=False)
            rows.append({"pool": number, "model": model, **_averages(lost)})
    return rows


def _losses(ground: Ground, standing: Standing, *, has_spare: bool) -> list[_Loss]:
    found: list[_Loss] = []
    machines = {m.node_id: m for m in ground.machines}
    for chain in standing.chains:
        for node_id, _ in chain:
            left: list[Machine] = [m for m in ground.machines if m.node_id != node_id]
            if has_spare:
                left.append(replace(machines[node_id], node_id="spare"))
            after = replace(ground, machines=tuple(left))
            started_s = time.process_time()
            repaired = repair_pool(after, standing)
            taken_s = time.process_time() - started_s
            wrong = pool_violations(after, repaired.plan)
            if wrong:
                raise SystemExit(f"{node_id} lost: {wrong[0]}")
            kept = repaired.plan.rate_per_s / repaired.rate_before_per_s
            found.append(_Loss(node_id, len(chain) - 1, repaired, kept, taken_s))
    return found


def _row(model: str, loss: _Loss, spare: _Loss) -> dict[str, object]:
    return {
        "model": model,
        "lost": loss.node_id,
        "survivors of its chain": loss.num_survivors,
        "kept %": round(100 * loss.kept, 2),
        "moved nodes": len(loss.repaired.moves),
        "moved GiB": round(loss.repaired.moved_bytes / GIB, 1),
        "donors": len(loss.repaired.donors),
        "cpu s": round(loss.cpu_s, 3),
        "with a spare: kept %": round(100 * spare.kept, 2),
        "survivors moved": spare.repaired.num_survivors_moved,
    }


def _averages(lost: Sequence[_Loss]) -> dict[str, object]:
    return {
        "kept %": round(100 * statistics.fmean(loss.kept for loss in lost), 2),
        "moved nodes": round(statistics.fmean(len(loss.repaired.moves) for loss in lost), 2),
        "moved GiB": round(statistics.fmean(x.repaired.moved_bytes for x in lost) / GIB, 1),
        "cpu s": round(statistics.fmean(loss.cpu_s for loss in lost), 3),
        "cpu s, most": round(max(loss.cpu_s for loss in lost), 3),
    }


def _verdict(
    console: Console, model: str, lost: Sequence[_Loss], spared: Sequence[_Loss], least: float
) -> None:
    """The averages beside their bars."""
    kept = statistics.fmean(loss.kept for loss in lost)
    moved = statistics.fmean(len(loss.repaired.moves) for loss in lost)
    cpu_s = statistics.fmean(loss.cpu_s for loss in lost)
    survivors = max(loss.repaired.num_survivors_moved for loss in spared)
    for text, holds in (
        (f"kept {100 * kept:.2f} % (bar {100 * least:.1f} %)", kept >= least),
        (f"nodes moved {moved:.2f} (bar {MOVED_MAX})", moved <= MOVED_MAX),
        (f"{cpu_s:.3f} CPU s (bar {CPU_S_MAX})", cpu_s <= CPU_S_MAX),
        (f"survivors moved with a spare at hand: {survivors} (bar 0)", survivors == 0),
    ):
        console.print(f"{model}, one of {NODES} lost: {text}: {'holds' if holds else 'MISSED'}")
