"""What the scheduler's figures must reach, read off the rows that are printed."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks._bars import Bar
from benchmarks._repair_figures import repair_bars

Rows = Sequence[Mapping[str, object]]
FLOW_PER_S: Final = {  # cluster, most stages: tokens/s
    ("cluster10", "any"): 286.58,
    ("single24", 12): 1_392.0,
    ("single24", 14): 1_515.0,
    ("single24", "any"): 2_045.0,
    ("3cluster24", 14): 1_476.0,
}
CLUSTER_S: Final = 2.0
PUBLISHED: Final = {"72b": 1.9, "32b": 1.25, "8b": 1.0}
"""Rates by the best published planner's, geometric mean over pools of 8 to 128 nodes."""
GAP: Final = ((128, 5.0), (32, 12.0))
"""Nodes at least, and how far below the printed bound a plan may be, per cent."""
POOL_S: Final = {64: 1.0, 1_000: 2.0, 10_000: 8.0}
MEMORY_MB: Final = 500.0


def bars_of(parts: Mapping[str, Rows]) -> list[Bar]:
    """Bars of the parts that ran."""
    return [
        *_clusters(parts.get("clusters", ())),
        *_pools(parts.get("pools", ())),
        *repair_bars(parts.get("repairs", ())),
        *_large(parts.get("large pools", ())),
        *_unsolved(parts.get("live networks without a solver", ())),
    ]


def _clusters(rows: Rows) -> list[Bar]:
    bars = []
    for row in rows:
        cluster, stages = str(row["cluster"]), row["stages max"]
        name = f"{cluster} at {stages} stages"
        bars.append(Bar(name=f"{name}: CPU", measured=_of(row, "cpu s"), most=CLUSTER_S, unit="s"))
        least = FLOW_PER_S.get((cluster, stages))
        if least is not None:
            flow = _of(row, "tokens/s")
            bars.append(Bar(name=name, measured=flow, least=least, unit="tokens/s"))
    return bars


def _pools(rows: Rows) -> list[Bar]:
    bars = [bar for row in rows for bar in _gap(row)]
    for model in sorted({str(row["model"]) for row in rows}):
        own = [row for row in rows if row["model"] == model and row["/ best published"] != ""]
        least = next((bar for name, bar in PUBLISHED.items() if name in model), None)
        if not own or least is None:
            continue
        ratios = [_of(row, "/ best published") for row in own]
        middle = [_of(row, "/ best published") for row in own if 8 <= _of(row, "nodes") <= 128]
        mean = statistics.geometric_mean(middle)
        bars.append(Bar(name=f"{model}: / best published, mean", measured=mean, least=least))
        bars.append(Bar(name=f"{model}: / best published, worst", measured=min(ratios), least=1.0))
    return bars


def _large(rows: Rows) -> list[Bar]:
    bars = []
    for row in rows:
        nodes = int(_of(row, "nodes"))
        name = f"{row['model']}, {nodes} nodes"
        taken_s = _of(row, "cpu s")
        bars.append(Bar(name=f"{name}: CPU", measured=taken_s, most=POOL_S[nodes], unit="s"))
        bars += _gap(row)
    if rows:
        most_mb = max(_of(row, "MB") for row in rows)
        bars.append(Bar(name="memory", measured=most_mb, most=MEMORY_MB, unit="MB"))
    return bars


def _unsolved(rows: Rows) -> list[Bar]:
    """Plans and repairs that nobody's solver makes."""
    return [
        Bar(
            name=f"{row['nodes']} live nodes without a solver: {what}",
            measured=_of(row, what),
            most=POOL_S[int(_of(row, "nodes"))],
            unit="s",
        )
        for row in rows
        for what in ("plan cpu s", "repair cpu s")
    ]


def _gap(row: Mapping[str, object]) -> list[Bar]:
    """Of one pool, where its size has a bar."""
    nodes = _of(row, "nodes")
    most = next((gap for least, gap in GAP if nodes >= least), None)
    if most is None:
        return []
    name = f"{row['model']}, {nodes:g} nodes: below the bound"
    return [Bar(name=name, measured=_of(row, "gap %"), most=most, unit="%")]


def _of(row: Mapping[str, object], name: str) -> float:
    return float(str(row[name]))
