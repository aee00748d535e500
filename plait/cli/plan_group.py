"""What pool files say of nodes beyond their figures: groups of ranks, and how long they stay."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from plait.cli.plan_fields import Table, count, number
from plait.errors import ConfigError
from plait.types import NodeId, NodeProfile, TensorGroup
from scheduler.planning.roofline import Device

GROUP_FIELDS: Final = frozenset({"degree", "link_gb_s", "link_latency_us"})
LINK_GB_S: Final = 25.0
LINK_LATENCY_US: Final = 10.0
DEGREE_MAX: Final = 64
MEMBER_FIELDS: Final = frozenset({"members"})


def tensor_group(node: Table, where: str) -> TensorGroup | None:
    """The `tensor_parallel` of a node, whose other figures are those of one rank. Raises
    ConfigError."""
    table = node.get("tensor_parallel")
    if table is None:
        return None
    where = f"{where}: tensor_parallel"
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is a table of {', '.join(sorted(GROUP_FIELDS))}")
    unknown = sorted(set(table) - GROUP_FIELDS)
    if unknown:
        known = ", ".join(sorted(GROUP_FIELDS))
        raise ConfigError(f"{where}: unknown field `{unknown[0]}`; known: {known}")
    degree = count(table, "degree", where)
    if degree > DEGREE_MAX:
        raise ConfigError(f"{where}: `degree` is at most {DEGREE_MAX}")
    return TensorGroup(
        degree=degree,
        link_bytes_per_s=number(table, "link_gb_s", where, LINK_GB_S) * 1e9,
        link_latency_s=number(table, "link_latency_us", where, LINK_LATENCY_US) / 1e6,
    )


def grouped_profile(rank: NodeProfile, group: TensorGroup | None) -> NodeProfile:
    """`group.degree` ranks like `rank` as one node."""
    if group is None:
        return rank
    return replace(
        rank,
        memory_bytes=rank.memory_bytes * group.degree,
        memory_bytes_per_s=rank.memory_bytes_per_s * group.degree,
        flops_per_s=rank.flops_per_s * group.degree,
        group=group,
    )


def grouped_device(rank: Device, group: TensorGroup | None) -> Device:
    """The same of nominal figures."""
    if group is None:
        return rank
    return replace(
        rank,
        kind=f"{group.degree} x {rank.kind}",
        memory_bytes=rank.memory_bytes * group.degree,
        memory_bytes_per_s=rank.memory_bytes_per_s * group.degree,
        flops_per_s=rank.flops_per_s * group.degree,
        group=group,
    )


def join_groups(
    table: Table, nodes: Sequence[NodeProfile], regions: Mapping[NodeId, str], where: str
) -> list[NodeProfile]:
    """`nodes`, those named by an entry of `groups` made into one each: as many ranks as the weakest
    of them. Raises ConfigError."""
    entries = table.get("groups", [])
    if not isinstance(entries, list):
        raise ConfigError(f"{where}: `groups` is a list of tables")
    left = {node.node_id: node for node in nodes}
    joined: list[NodeProfile] = []
    for index, entry in enumerate(entries):
        place = f"{where}: groups[{index}]"
        names = entry.get("members") if isinstance(entry, dict) else None
        if not isinstance(names, list) or len(names) < 2:
            raise ConfigError(f"{place}: it needs `members`, two nodes or more")
        strangers = [name for name in names if name not in left]
        if strangers or len(set(names)) != len(names):
            who = strangers[0] if strangers else "one"
            raise ConfigError(f"{place}: {who!r} is no node, or in a group already")
        ranks = [left.pop(NodeId(name)) for name in names]
        if len({regions[rank.node_id] for rank in ranks}) > 1:
            raise ConfigError(f"{place}: its members stand in different regions")
        if len({rank.compute_dtype for rank in ranks}) > 1:
            raise ConfigError(f"{place}: its members differ in `dtype`")
        figures = {name: value for name, value in entry.items() if name not in MEMBER_FIELDS}
        link = tensor_group({"tensor_parallel": {**figures, "degree": len(ranks)}}, place)
        joined.append(grouped_profile(_weakest(ranks), link))
    return [*left.values(), *joined]


def _weakest(ranks: Sequence[NodeProfile]) -> NodeProfile:
    """What each rank can do at least, under the first one's name."""
    return replace(
        ranks[0],
        memory_bytes=min(rank.memory_bytes for rank in ranks),
        memory_bytes_per_s=min(rank.memory_bytes_per_s for rank in ranks),
        flops_per_s=min(rank.flops_per_s for rank in ranks),
        coordinator_rtt_ms=max(rank.coordinator_rtt_ms for rank in ranks),
        up_bytes_per_s=min(rank.up_bytes_per_s for rank in ranks),
        down_bytes_per_s=min(rank.down_bytes_per_s for rank in ranks),
    )


def mean_session_s(node: Table, where: str) -> float | None:
    """How long the node stays at a time; None where the file does not say."""
    if "mean_session_h" not in node:
        return None
    return number(node, "mean_session_h", where) * 3600.0
