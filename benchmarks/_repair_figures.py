"""Repairs of pools of 32 nodes: every node leaves once; then again with an equal spare at hand.

Kept is what the repaired plan carries of what the whole plan carried. Times are CPU seconds.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from benchmarks._bars import Bar
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


def repairs(pool: Mapping[str, object]) -> Figures:
    """Every model with a bar: each node lost."""
    rows: Figures = []
    models = pool["models"]
    for model in sorted(models) if isinstance(models, dict) else ():
        if not any(part in model for part in KEPT_MIN):
            continue
        ground = read_nominal(pool, str(NODES), model).ground
        standing = standing_of(ground, plan_pool(ground, Wish()))
        lost = _losses(ground, standing, has_spare=False)
        spared = _losses(ground, standing, has_spare=True)
        rows += [_row(model, loss, spare) for loss, spare in zip(lost, spared, strict=True)]
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
        "kept %": round(100 * fmean(loss.kept for loss in lost), 2),
        "moved nodes": round(fmean(len(loss.repaired.moves) for loss in lost), 2),
        "moved GiB": round(fmean(x.repaired.moved_bytes for x in lost) / GIB, 1),
        "cpu s": round(fmean(loss.cpu_s for loss in lost), 3),
        "cpu s, most": round(max(loss.cpu_s for loss in lost), 3),
    }


def repair_bars(rows: Sequence[Mapping[str, object]]) -> list[Bar]:
    """Of the rows of `repairs`: what the averages of each model must reach."""
    bars: list[Bar] = []
    for model in sorted({str(row["model"]) for row in rows}):
        own = [row for row in rows if row["model"] == model]
        least = next(bar for part, bar in KEPT_MIN.items() if part in model)
        kept, moved, cpu_s, survivors = (
            [float(str(row[name])) for row in own]
            for name in ("kept %", "moved nodes", "cpu s", "survivors moved")
        )
        name = f"{model}, one of {NODES} lost"
        bars += [
            Bar(name=f"{name}: kept", measured=fmean(kept), least=100 * least, unit="%"),
            Bar(name=f"{name}: nodes moved", measured=fmean(moved), most=MOVED_MAX),
            Bar(name=f"{name}: CPU", measured=fmean(cpu_s), most=CPU_S_MAX, unit="s"),
            Bar(name=f"{name}: survivors moved beside a spare", measured=max(survivors), most=0),
        ]
    return bars
