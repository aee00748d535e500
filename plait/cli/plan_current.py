"""Reads a plan that was made before: what the pool's nodes hold, as `plait plan --out` wrote it."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from plait.cli.plan_fields import Table, read_table
from plait.errors import ConfigError

SHOWN = 5
LAYERS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class HeldStage:
    """Layers [start, end) of a model on a node; None where the file names no model."""

    node: str
    model: str | None
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """What is held, and the chains through it with what each was planned to carry (None: the file
    does not say). `layers` are how many each model had, where the file says so."""

    where: str
    held: tuple[HeldStage, ...]
    chains: tuple[tuple[HeldStage, ...], ...]
    rates: tuple[float | None, ...]
    layers: tuple[tuple[str, int], ...] = ()

    def models(self) -> list[str]:
        """Models that the file names, in order."""
        return list(dict.fromkeys(stage.model for stage in self.held if stage.model is not None))


def read_current(path: Path) -> Current:
    """The plan in a file. Raises ConfigError that names the place."""
    table = read_table(path)
    where = str(path)
    if "placements" in table:
        return _of_placements(table, where)
    if "pipelines" in table:
        return _of_pipelines(table, where)
    if "placement" in table or all(_is_span(value) for value in table.values()):
        raise ConfigError(f"{where} is a plan of a cluster: those are planned anew")
    raise ConfigError(f"{where} is no plan: `plait plan FILE --out {where}` writes one")


def match_pool(current: Current, known: Iterable[str], file: str) -> tuple[list[str], list[str]]:
    """Nodes of the plan that are gone, and nodes of the pool that are new. Raises ConfigError where
    nobody of the plan is left: it is of another pool."""
    ours = list(known)
    before = [stage.node for stage in current.held]
    gone = [node for node in before if node not in set(ours)]
    if len(gone) == len(before):
        raise ConfigError(
            f"none of the {len(before)} nodes of {current.where} is in {file}: it is a plan of "
            "another pool; plan without --current"
        )
    return gone, [node for node in ours if node not in set(before)]


def match_models(current: Current, layers: dict[str, int]) -> None:
    """`layers` of each model that is planned now. Raises ConfigError: the plan holds another one,
    or one of that name with another number of layers."""
    asked = ", ".join(layers)
    for model in current.models():
        if model not in layers:
            raise ConfigError(
                f"{current.where} places layers of {model}, which is not planned here ({asked}): "
                "name it with --model, or plan without --current"
            )
    for model, now in layers.items():
        own = [
            s for s in current.held if s.model == model or (s.model is None and len(layers) == 1)
        ]
        ends = [stage.end for stage in own]
        before = dict(current.layers).get(model, max(ends, default=now))
        if before != now:
            raise ConfigError(
                f"{current.where} is stale: {model} has {before} layers there, {now} here; plan "
                "without --current"
            )


def listed(names: Sequence[str]) -> str:
    """A few names, and how many more."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _of_placements(table: Table, where: str) -> Current:
    """As networks are planned: one placement a node, chains by name."""
    held = [
        _stage(entry, f"{where}: placements[{i}]", needs_model=True)
        for i, entry in enumerate(_list(table, "placements", where))
    ]
    by_node = {stage.node: stage for stage in held}
    _refuse_twice([stage.node for stage in held], where)
    chains = []
    for i, names in enumerate(_list(table, "pipelines", where)):
        if not isinstance(names, list) or any(name not in by_node for name in names):
            raise ConfigError(f"{where}: pipelines[{i}] names a node without a placement")
        chains.append(tuple(by_node[name] for name in names))
    layers = [
        (entry["model"], entry["num_layers"])
        for entry in _list(table, "models", where, default=())
        if isinstance(entry, dict)
        and isinstance(entry.get("model"), str)
        and _is_layer(entry.get("num_layers"))
    ]
    return Current(
        where=where,
        held=tuple(held),
        chains=tuple(chains),
        rates=(None,) * len(chains),
        layers=tuple(layers),
    )


def _of_pipelines(table: Table, where: str) -> Current:
    """As pools are planned: chains of stages, each from where the one before it ends."""
    model = table.get("model")
    chains: list[tuple[HeldStage, ...]] = []
    for i, entries in enumerate(_list(table, "pipelines", where)):
        place = f"{where}: pipelines[{i}]"
        if not isinstance(entries, list) or not entries:
            raise ConfigError(f"{place} is not a list of stages")
        chain = [
            _stage(
                {"model": model, **entry} if isinstance(entry, dict) else entry,
                f"{place}[{j}]",
                needs_model=False,
            )
            for j, entry in enumerate(entries)
        ]
        edges = [0, *(stage.end for stage in chain)]
        for stage, start in zip(chain, edges, strict=False):
            if stage.start != start:
                raise ConfigError(
                    f"{place}: {stage.node} starts at layer {stage.start}, not {start}"
                )
        chains.append(tuple(chain))
    if len({chain[-1].end for chain in chains}) > 1:
        raise ConfigError(f"{where}: its chains do not end at the same layer")
    held = tuple(itertools.chain.from_iterable(chains))
    _refuse_twice([stage.node for stage in held], where)
    said = table.get("chain_tokens_per_s")
    rates: list[float | None] = [None] * len(chains)
    if isinstance(said, list) and len(said) == len(chains):
        rates = [float(r) if _is_rate(r) else None for r in said]
    return Current(where=where, held=held, chains=tuple(chains), rates=tuple(rates))


def _stage(entry: object, where: str, *, needs_model: bool) -> HeldStage:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is not a table")
    node, model, start, end = (entry.get(name) for name in ("node", "model", "start", "end"))
    if not isinstance(node, str) or not node:
        raise ConfigError(f"{where}: it needs a `node`")
    if not isinstance(model, str if needs_model else str | None):
        raise ConfigError(f"{where}: it needs a `model`")
    if not _is_layer(start) or not _is_layer(end) or not start < end:
        raise ConfigError(f"{where}: `start` and `end` are layers, the first below the second")
    return HeldStage(node, model, start, end)


def _list(table: Table, name: str, where: str, *, default: object = None) -> Sequence[object]:
    value = table.get(name, default)
    if not isinstance(value, list | tuple) or (not value and default is None):
        raise ConfigError(f"{where}: it needs at least one entry of `{name}`")
    return value


def _refuse_twice(nodes: Sequence[str], where: str) -> None:
    seen: set[str] = set()
    for node in nodes:
        if node in seen:
            raise ConfigError(f"{where}: {node} stands in two places")
        seen.add(node)


def _is_layer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LAYERS_MAX


def _is_rate(value: object) -> TypeGuard[float]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0.0 < value < math.inf  # type: ignore[operator]


def _is_span(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(v, int) for v in value)
