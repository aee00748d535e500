"""Reads a pool of nodes from a TOML or JSON file; docs/scheduling.md lists the fields."""

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plait.errors import ConfigError
from plait.types import DType, NodeId, NodeProfile

GIB: Final = 1 << 30
POOL_NODES_MAX: Final = 1_000
NODE_FIELDS: Final = frozenset(
    {
        "name",
        "count",
        "region",
        "memory_gib",
        "memory_gb_per_s",
        "tflops",
        "dtype",
        "rtt_ms",
        "up_mbit_per_s",
        "down_mbit_per_s",
    }
)
POOL_FIELDS: Final = frozenset({"nodes", "regions", "kv_tokens", "wire_dtype"})
Table = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes to plan with, and what they share."""

    nodes: tuple[NodeProfile, ...]
    rtt_ms: tuple[tuple[tuple[NodeId, NodeId], float], ...]
    kv_tokens: int
    wire_dtype: DType


def read_pool(path: Path) -> Pool:
    """The pool described by `path`. Raises ConfigError that names the field."""
    table = _read(path)
    _refuse_unknown(table, POOL_FIELDS, str(path))
    entries = table.get("nodes")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path}: it needs at least one entry of `nodes`")
    nodes: list[NodeProfile] = []
    regions: dict[NodeId, str] = {}
    for index, entry in enumerate(entries):
        where = f"{path}: nodes[{index}]"
        if not isinstance(entry, dict):
            raise ConfigError(f"{where} is not a table")
        for profile, region in _profiles(entry, where):
            if profile.node_id in regions:
                raise ConfigError(f"{where}: the name {profile.node_id!r} is used twice")
            if len(nodes) >= POOL_NODES_MAX:
                raise ConfigError(f"{path}: more than {POOL_NODES_MAX} nodes")
            regions[profile.node_id] = region
            nodes.append(profile)
    return Pool(
        nodes=tuple(nodes),
        rtt_ms=tuple(_pairs(table.get("regions", {}), regions, str(path))),
        kv_tokens=int(_number(table, "kv_tokens", 2_048, str(path))),
        wire_dtype=_dtype(table, "wire_dtype", str(path)),
    )


def _read(path: Path) -> Table:
    try:
        text = path.read_text("utf-8")
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the pool {path} cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"the pool {path} is not a table")
    return table


def _profiles(entry: Table, where: str) -> Iterator[tuple[NodeProfile, str]]:
    """An entry stands for `count` equal nodes."""
    _refuse_unknown(entry, NODE_FIELDS, where)
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: it needs a `name`")
    if "memory_gib" not in entry:
        raise ConfigError(f"{where}: it needs `memory_gib`, what the node may use")
    count = int(_number(entry, "count", 1, where))
    region = entry.get("region", "")
    if not isinstance(region, str):
        raise ConfigError(f"{where}: `region` is a name")
    for index in range(count):
        own = name if count == 1 else f"{name}-{index + 1}"
        yield _profile(entry, own, where), region


def _profile(entry: Table, name: str, where: str) -> NodeProfile:
    return NodeProfile(
        node_id=NodeId(name),
        display_name=name,
        device_kind="planned",
        device_name=name,
        memory_bytes=int(_number(entry, "memory_gib", 0, where) * GIB),
        memory_bytes_per_s=_number(entry, "memory_gb_per_s", 400, where) * 1e9,
        flops_per_s=_number(entry, "tflops", 40, where) * 1e12,
        compute_dtype=_dtype(entry, "dtype", where),
        coordinator_rtt_ms=_number(entry, "rtt_ms", 30, where),
        up_bytes_per_s=_number(entry, "up_mbit_per_s", 50, where) * 125_000,
        down_bytes_per_s=_number(entry, "down_mbit_per_s", 200, where) * 125_000,
        timings=(),
        addresses=(),
    )


def _pairs(
    table: object, regions: Mapping[NodeId, str], where: str
) -> Iterator[tuple[tuple[NodeId, NodeId], float]]:
    """Round trips of `regions`: keys "eu|us", the same name twice for inside a region."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: `regions` is a table of round trips")
    known = set(regions.values())
    for key in table:
        parts = str(key).split("|")
        if len(parts) != 2 or not set(parts) <= known:
            raise ConfigError(f"{where}: regions.{key!r} does not join two regions of nodes")
    names = list(regions)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            one, two = regions[a], regions[b]
            key = f"{one}|{two}" if f"{one}|{two}" in table else f"{two}|{one}"
            if key in table:
                yield (a, b), _number(table, key, 0, where)


def _number(table: Table, name: str, default: float, where: str) -> float:
    value = table.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{where}: `{name}` is not a number")
    if not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{where}: `{name}` must be above 0")
    return float(value)


def _dtype(table: Table, name: str, where: str) -> DType:
    value = table.get(name, "bfloat16")
    try:
        return DType(str(value))
    except ValueError:
        known = ", ".join(DType)
        raise ConfigError(f"{where}: `{name}` is one of {known}, not {value!r}") from None


def _refuse_unknown(table: Table, known: frozenset[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise ConfigError(
            f"{where}: unknown field `{unknown[0]}`; known: {', '.join(sorted(known))}"
        )
