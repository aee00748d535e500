"""Reads a pool of nodes from a TOML or JSON file; docs/planning.md lists the fields."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plait.cli.plan_fields import Table, number, read_table
from plait.cli.plan_group import (
    grouped_profile,
    join_groups,
    joint_session_s,
    mean_session_s,
    read_groups,
    tensor_group,
)
from plait.errors import ConfigError
from plait.types import DType, NodeId, NodeProfile, WeightFormat

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
        "tensor_parallel",
        "mean_session_h",
    }
)
POOL_FIELDS: Final = frozenset(
    {"nodes", "groups", "regions", "kv_tokens", "wire_dtype", "weight_format"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes to plan with, and what they share."""

    nodes: tuple[NodeProfile, ...]
    rtt_ms: tuple[tuple[tuple[NodeId, NodeId], float], ...]
    kv_tokens: int
    wire_dtype: DType
    weight_format: WeightFormat = WeightFormat.NATIVE
    mean_session_s: tuple[tuple[NodeId, float], ...] = ()


def read_pool(path: Path) -> Pool:
    """The pool described by `path`. Raises ConfigError that names the field."""
    return pool_of(read_table(path), path)


def pool_of(table: Table, path: Path) -> Pool:
    """The pool described by a file's table. Raises ConfigError that names the field."""
    _refuse_unknown(table, POOL_FIELDS, str(path))
    entries = table.get("nodes")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path}: it needs at least one entry of `nodes`")
    nodes: list[NodeProfile] = []
    regions: dict[NodeId, str] = {}
    sessions_s: dict[NodeId, float] = {}
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
            session_s = mean_session_s(entry, where)
            if session_s is not None:
                sessions_s[profile.node_id] = session_s
    joined = join_groups(table, nodes, regions, str(path))
    kept = {node.node_id for node in joined}
    for group in read_groups(table, regions, str(path)):
        session_s = joint_session_s(sessions_s.get(NodeId(name)) for name in group.members)
        if session_s is not None:
            sessions_s[NodeId(group.members[0])] = session_s
    regions = {node_id: region for node_id, region in regions.items() if node_id in kept}
    return Pool(
        nodes=tuple(joined),
        rtt_ms=tuple(_pairs(table.get("regions", {}), regions, str(path))),
        kv_tokens=int(number(table, "kv_tokens", str(path), 2_048)),
        wire_dtype=_dtype(table, "wire_dtype", str(path)),
        weight_format=_weight_format(table, str(path)),
        mean_session_s=tuple((n, s) for n, s in sessions_s.items() if n in kept),
    )


def _profiles(entry: Table, where: str) -> Iterator[tuple[NodeProfile, str]]:
    """An entry stands for `count` equal nodes."""
    _refuse_unknown(entry, NODE_FIELDS, where)
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: it needs a `name`")
    if "memory_gib" not in entry:
        raise ConfigError(f"{where}: it needs `memory_gib`, what the node may use")
    count = int(number(entry, "count", where, 1))
    region = entry.get("region", "")
    if not isinstance(region, str):
        raise ConfigError(f"{where}: `region` is a name")
    for index in range(count):
        own = name if count == 1 else f"{name}-{index + 1}"
        yield grouped_profile(_profile(entry, own, where), tensor_group(entry, where)), region


def _profile(entry: Table, name: str, where: str) -> NodeProfile:
    return NodeProfile(
        node_id=NodeId(name),
        display_name=name,
        device_kind="planned",
        device_name=name,
        memory_bytes=int(number(entry, "memory_gib", where, 0) * GIB),
        memory_bytes_per_s=number(entry, "memory_gb_per_s", where, 400) * 1e9,
        flops_per_s=number(entry, "tflops", where, 40) * 1e12,
        compute_dtype=_dtype(entry, "dtype", where),
        coordinator_rtt_ms=number(entry, "rtt_ms", where, 30),
        up_bytes_per_s=number(entry, "up_mbit_per_s", where, 50) * 125_000,
        down_bytes_per_s=number(entry, "down_mbit_per_s", where, 200) * 125_000,
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
                yield (a, b), number(table, key, where, 0)


def _dtype(table: Table, name: str, where: str) -> DType:
    value = table.get(name, "bfloat16")
    try:
        return DType(str(value))
    except ValueError:
        known = ", ".join(DType)
        raise ConfigError(f"{where}: `{name}` is one of {known}, not {value!r}") from None


def _weight_format(table: Table, where: str) -> WeightFormat:
    value = table.get("weight_format", WeightFormat.NATIVE)
    try:
        return WeightFormat(str(value))
    except ValueError:
        known = ", ".join(WeightFormat)
        raise ConfigError(f"{where}: `weight_format` is one of {known}, not {value!r}") from None


def _refuse_unknown(table: Table, known: frozenset[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise ConfigError(
            f"{where}: unknown field `{unknown[0]}`; known: {', '.join(sorted(known))}"
        )
