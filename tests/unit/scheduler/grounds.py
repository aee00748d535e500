"""Pools and clusters for the planner's tests, drawn from seeds."""

import random

from scheduler.planning.cluster import Cluster
from scheduler.planning.ground import Ground
from scheduler.planning.roofline import Device, ModelFigures, Rules, machine_of

GIB = 1 << 30
DEVICES = {  # GiB, TFLOP/s, GB/s
    "large": (32, 200.0, 1800.0),
    "middle": (24, 120.0, 950.0),
    "small": (12, 25.0, 360.0),
}
REGION_RTT_MS = ((10.0, 75.0, 190.0), (75.0, 8.0, 120.0), (190.0, 120.0, 15.0))


def model(num_layers: int = 80, *, layer_mib: float = 470.0) -> ModelFigures:
    """A large model in four bits."""
    return ModelFigures(
        num_layers=num_layers,
        hidden=8192,
        vocab=152_064,
        layer_bytes=layer_mib * (1 << 20),
        kv_bytes=4096,
        layer_flops=1.8e9,
        embedding_bytes=2.4e9,
    )


def draw_ground(
    seed: int, num_nodes: int, figures: ModelFigures | None = None, *, num_regions: int = 3
) -> Ground:
    """Volunteers of three kinds, by seed."""
    rng = random.Random(seed)
    used = model() if figures is None else figures
    machines = []
    for index in range(num_nodes):
        kind = rng.choice(sorted(DEVICES))
        gib, tflops, gb_per_s = DEVICES[kind]
        device = Device(
            node_id=f"n{index}",
            kind=kind,
            region=rng.randrange(num_regions),
            last_mile_s=rng.uniform(2e-3, 10e-3),
            up_bytes_per_s=rng.choice((6.25e6, 12.5e6, 25e6, 62.5e6)),
            down_bytes_per_s=rng.choice((25e6, 62.5e6, 125e6)),
            memory_bytes=gib * GIB,
            flops_per_s=tflops * 1e12,
            memory_bytes_per_s=gb_per_s * 1e9,
        )
        machines.append(machine_of(device, used, Rules()))
    return Ground(
        num_layers=used.num_layers,
        activation_bytes=used.activation_bytes,
        regions=tuple(f"r{i}" for i in range(num_regions)),
        region_rtt_s=tuple(
            tuple(ms / 1e3 for ms in row[:num_regions]) for row in REGION_RTT_MS[:num_regions]
        ),
        machines=tuple(machines),
    )


def cluster(
    counts: tuple[int, ...], tables: tuple[dict[int, float], ...], num_layers: int
) -> Cluster:
    """Nodes in one place, whose links never bind."""
    kinds = tuple(kind for kind, count in enumerate(counts) for _ in range(count))
    nodes = range(len(kinds))
    return Cluster(
        num_layers=num_layers,
        types=tuple(f"t{i}" for i in range(len(tables))),
        table=tables,
        node_ids=tuple(str(i) for i in nodes),
        kinds=kinds,
        links={(i, j): 1e9 for i in nodes for j in nodes if i != j},
        entry=dict.fromkeys(nodes, 1e9),
        leave=dict.fromkeys(nodes, 1e9),
    )
