"""How nodes did over the last half hour: a few figures every ten seconds, bounded."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from coordinator.core.view import NodeView

STEP_MS: Final = 10_000
STEPS_MAX: Final = 180
NODES_MAX: Final = 4_096


def _series() -> "array[float]":
    return array("f")


@dataclass(slots=True)
class NodeSeries:
    """Oldest first. Tokens and bytes a second since the step before; the stage's time in ms."""

    tokens_per_s: "array[float]" = field(default_factory=_series)
    stage_ms: "array[float]" = field(default_factory=_series)
    sent_bytes_per_s: "array[float]" = field(default_factory=_series)
    last_tokens: int = 0
    last_sent_bytes: int = 0
    last_incarnation: int = 0


class NodeHistory:
    """Of at most NODES_MAX nodes, those that left longest ago go first."""

    def __init__(self) -> None:
        self._series: dict[str, NodeSeries] = {}
        self._noted_ms: int | None = None

    def note(self, nodes: Iterable[NodeView], now_ms: int) -> bool:
        """Take a step where one is due; whether it was."""
        since_ms = None if self._noted_ms is None else now_ms - self._noted_ms
        if since_ms is not None and since_ms < STEP_MS:
            return False
        self._noted_ms = now_ms
        for node in nodes:
            series = self._series.pop(node.node_id, None)
            known = series if series is not None else NodeSeries()
            self._series[node.node_id] = known
            _step(known, node, None if series is None else since_ms)
        while len(self._series) > NODES_MAX:
            del self._series[next(iter(self._series))]
        return True

    def of(self, node_id: str) -> NodeSeries:
        """A node's figures; empty where it is not known."""
        return self._series.get(node_id, NodeSeries())


def _step(series: NodeSeries, node: NodeView, since_ms: int | None) -> None:
    is_same = node.incarnation == series.last_incarnation and since_ms is not None
    tokens, sent = node.tokens_total, node.sent_bytes_total
    if is_same and since_ms:
        _push(series.tokens_per_s, 1e3 * max(0, tokens - series.last_tokens) / since_ms)
        _push(series.sent_bytes_per_s, 1e3 * max(0, sent - series.last_sent_bytes) / since_ms)
        _push(series.stage_ms, node.stage_ms)
    series.last_tokens, series.last_sent_bytes = tokens, sent
    series.last_incarnation = node.incarnation


def _push(values: "array[float]", value: float) -> None:
    values.append(value)
    if len(values) > STEPS_MAX:
        del values[0]
