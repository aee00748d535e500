"""What pool files say of nodes beyond their figures: groups of ranks, and how long they stay."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class Group:
    """An entry of `groups`: who it is made of, how they are linked, and where it stands."""

    members: tuple[str, ...]
    link: TensorGroup
    where: str


def read_groups(table: Table, singles: Container[str], where: str) -> list[Group]:
    """The entries of `groups`; `singles` are nodes that may be members. Raises ConfigError."""
    entries = table.get("groups", [])
    if not isinstance(entries, list):
        raise ConfigError(f"{where}: `groups` is a list of tables")
    taken: set[str] = set()
    groups: list[Group] = []
    for index, entry in enumerate(entries):
        place = f"{where}: groups[{index}]"
        names = entry.get("members") if isinstance(entry, dict) else None
        if not isinstance(names, list) or len(names) < 2:
            raise ConfigError(f"{place}: it needs `members`, two nodes or more")
        for name in names:
            if not isinstance(name, str) or name not in singles or name in taken:
                raise ConfigError(f"{place}: {name!r} is no node, or in a group already")
            taken.add(name)
        figures = {name: value for name, value in entry.items() if name not in MEMBER_FIELDS}
        link = tensor_group({"tensor_parallel": {**figures, "degree": len(names)}}, place)
        assert link is not None
        groups.append(Group(tuple(names), link, place))
    return groups


def join_groups(
    table: Table, nodes: Sequence[NodeProfile], regions: Mapping[NodeId, str], where: str
) -> list[NodeProfile]:
    """`nodes`, those named by an entry of `groups` made into one each: as many ranks as the weakest
    of them. Raises ConfigError."""
    left = {node.node_id: node for node in nodes}
    singles = {node.node_id for node in nodes if node.group is None}
    joined: list[NodeProfile] = []
    for group in read_groups(table, singles, where):
        ranks = [left.pop(NodeId(name)) for name in group.members]
        if len({regions[rank.node_id] for rank in ranks}) > 1:
            raise ConfigError(f"{group.where}: its members stand in different regions")
        if len({rank.compute_dtype for rank in ranks}) > 1:
            raise ConfigError(f"{group.where}: its members differ in `dtype`")
        joined.append(grouped_profile(_weakest(ranks), group.link))
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


def join_devices(
    table: Table, ranks: Sequence[Device], where: str
) -> tuple[list[Device], dict[str, str]]:
    """The same of nominal figures; and where each group stands in the file, by its name."""
    left = {device.node_id: device for device in ranks}
    singles = {device.node_id for device in ranks if device.group is None}
    joined: list[Device] = []
    places: dict[str, str] = {}
    for group in read_groups(table, singles, where):
        members = [left.pop(name) for name in group.members]
        if len({member.region for member in members}) > 1:
            raise ConfigError(f"{group.where}: its members stand in different regions")
        joined.append(grouped_device(_weakest_device(members), group.link))
        places[joined[-1].node_id] = group.where
    return [*left.values(), *joined], places


def _weakest_device(ranks: Sequence[Device]) -> Device:
    """What each rank can do at least, under the first one's name; it is of the kinds of all."""
    kinds = dict.fromkeys(rank.kind for rank in ranks)
    return replace(
        ranks[0],
        kind=" or ".join(kinds),
        last_mile_s=max(rank.last_mile_s for rank in ranks),
        up_bytes_per_s=min(rank.up_bytes_per_s for rank in ranks),
        down_bytes_per_s=min(rank.down_bytes_per_s for rank in ranks),
        memory_bytes=min(rank.memory_bytes for rank in ranks),
        flops_per_s=min(rank.flops_per_s for rank in ranks),
        memory_bytes_per_s=min(rank.memory_bytes_per_s for rank in ranks),
        mean_session_s=joint_session_s([rank.mean_session_s for rank in ranks]),
    )


def joint_session_s(sessions_s: Iterable[float | None]) -> float | None:
    """How long nodes that only serve together stay together: each leaves at its own rate, and
    those of which nothing is said never."""
    rates = [1.0 / session_s for session_s in sessions_s if session_s is not None]
    return 1.0 / sum(rates) if rates else None


def mean_session_s(node: Table, where: str) -> float | None:
    """How long the node stays at a time; None where the file does not say."""
    if "mean_session_h" not in node:
        return None
    return number(node, "mean_session_h", where) * 3600.0
