"""Reads clusters: types of machines with their throughput per number of layers, and links."""

from collections.abc import Sequence

from plait.cli.plan_fields import Table, count, entries, number, sub_table
from plait.errors import ConfigError
from scheduler.planning.cluster import Cluster

SOURCE, SINK = "source", "sink"
UNLIMITED = 1e18


def is_cluster(table: Table) -> bool:
    """A cluster, told by its fields."""
    return "machine_types" in table or "links_bidirectional" in table


def read_cluster(table: Table, where: str) -> Cluster:
    """The cluster as the planner sees it. Raises ConfigError that names the field."""
    model = sub_table(table, "model", where)
    num_layers = count(model, "layers", f"{where}: model")
    activation = number(model, "activation_bytes", f"{where}: model")
    token = number(model, "token_bytes", f"{where}: model")
    machine_types = sub_table(table, "machine_types", where)
    types = sorted(machine_types)
    tables = [
        _throughput(
            sub_table(machine_types, name, f"{where}: machine_types"),
            f"{where}: machine_types.{name}",
            activation,
        )
        for name in types
    ]
    ids: list[str] = []
    kinds: list[int] = []
    for index, node in enumerate(entries(table, "nodes", where)):
        place = f"{where}: nodes[{index}]"
        node_id = _node_id(node.get("id"), place)
        if node_id in ids:
            raise ConfigError(f"{where}: the id {node_id!r} is used twice")
        if node.get("type") not in types:
            raise ConfigError(f"{place}: `type` is one of {', '.join(types)}")
        ids.append(node_id)
        kinds.append(types.index(str(node["type"])))
    at = {node_id: i for i, node_id in enumerate(ids)}
    links: dict[tuple[int, int], float] = {}
    entry: dict[int, float] = {}
    leave: dict[int, float] = {}
    for one, other, bytes_per_s in _links(table, where, at):
        for a, b in ((one, other), (other, one)):
            if a == SOURCE and b != SINK:
                entry[at[b]] = bytes_per_s / token
            elif b == SINK and a != SOURCE:
                leave[at[a]] = bytes_per_s / token
            elif a in at and b in at:
                links[at[a], at[b]] = bytes_per_s / activation
    return Cluster(
        num_layers=num_layers,
        types=tuple(types),
        table=tuple(tables),
        node_ids=tuple(ids),
        kinds=tuple(kinds),
        links=links,
        entry=entry,
        leave=leave,
    )


def _throughput(machine: Table, where: str, activation: float) -> dict[int, float]:
    """Tokens/s by number of layers, the NIC included."""
    nic = min(number(machine, name, where, UNLIMITED) for name in _NICS)
    rows = sub_table(machine, "tok_per_s_by_layers", where)
    found: dict[int, float] = {}
    for key in rows:
        if not str(key).isdigit() or int(key) < 1:
            raise ConfigError(f"{where}: {key!r} is not a number of layers")
        rate = number(rows, key, f"{where}: tok_per_s_by_layers")
        found[int(key)] = min(rate, nic / activation)
    if not found:
        raise ConfigError(f"{where}: `tok_per_s_by_layers` is empty")
    return found


_NICS = ("nic_in_Bps", "nic_out_Bps")


def _node_id(value: object, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise ConfigError(f"{where}: it needs an `id`")
    return str(value)


def _links(table: Table, where: str, known: dict[str, int]) -> list[tuple[str, str, float]]:
    rows = table.get("links_bidirectional")
    if not isinstance(rows, list):
        raise ConfigError(f"{where}: it needs `links_bidirectional`, a list")
    found: list[tuple[str, str, float]] = []
    for index, row in enumerate(rows):
        place = f"{where}: links_bidirectional[{index}]"
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) < 3:
            raise ConfigError(f"{place} is not [one, other, bytes per second, seconds]")
        ends = [str(row[0]), str(row[1])]
        for end in ends:
            if end not in known and end not in (SOURCE, SINK):
                raise ConfigError(f"{place}: no node {end!r}")
        found.append((ends[0], ends[1], number({"bandwidth": row[2]}, "bandwidth", place)))
    return found
