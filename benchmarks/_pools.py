"""Pools of volunteers for the scheduler's benchmark: drawn by seed, or read from a folder; and a
planner to compare with that knows neither regions nor KV."""

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from scheduler.planning.ground import Ground, Replica, ReplicaFigures, replica_figures

GIB: Final = 1 << 30
DEVICES: Final = {  # GiB, TFLOP/s, GB/s: nominal figures of five consumer cards
    "12 GB": (12, 25.5, 360.0),
    "16 GB": (16, 44.0, 288.0),
    "24 GB": (24, 71.0, 936.0),
    "24 GB fast": (24, 165.0, 1008.0),
    "32 GB": (32, 209.5, 1792.0),
}
WEIGHTS: Final = (24, 16, 20, 24, 16)
REGIONS: Final = ("america", "asia", "europe", "oceania")
NEAR_MS, FAR_MS = (8.0, 15.0), (60.0, 200.0)
MODELS: Final = {
    "72b-int4": (80, 8192, 152_064, 4.94e8, 1.82e9, 2.49e9),
    "32b-int4": (64, 5120, 151_936, 2.74e8, 1.04e9, 1.56e9),
    "8b-bf16": (32, 4096, 128_256, 4.36e8, 4.7e8, 1.05e9),
}


def draw_pool(num_nodes: int, seed: int) -> dict[str, object]:
    """A pool as `plait plan` reads it."""
    rng = random.Random(f"{seed} {num_nodes}")
    nodes = []
    for index in range(num_nodes):
        gpu = rng.choices(list(DEVICES), WEIGHTS)[0]
        gib, tflops, gb_per_s = DEVICES[gpu]
        nodes.append(
            {
                "id": f"n{index}",
                "gpu": gpu,
                "region": rng.choice(REGIONS),
                "last_mile_ms": round(rng.uniform(2.0, 10.0), 2),
                "up_bytes_per_s": rng.choice((6.25e6, 12.5e6, 25e6, 62.5e6)),
                "down_bytes_per_s": rng.choice((25e6, 62.5e6, 125e6)),
                "memory_bytes": gib * GIB,
                "flops": tflops * 1e12,
                "memory_bytes_per_s": gb_per_s * 1e9,
            }
        )
    trips = {
        f"{a}|{b}": round(rng.uniform(*(NEAR_MS if a == b else FAR_MS)), 1)
        for i, a in enumerate(REGIONS)
        for b in REGIONS[i:]
    }
    return {"nodes": nodes, "region_rtt_ms": trips, "models": drawn_models()}


def drawn_models() -> dict[str, dict[str, float]]:
    """Shapes of three well-known sizes."""
    names = ("layers", "hidden", "vocab", "layer_bytes", "layer_flops", "embedding_bytes")
    return {
        name: {**dict(zip(names, figures, strict=True)), "kv_bytes": 4096}
        for name, figures in MODELS.items()
    }


def read_pools(folder: Path) -> dict[int, Mapping[str, object]]:
    """By number of nodes."""
    found = [
        json.loads(path.read_text("utf-8")) for path in sorted((folder / "pools").glob("*.json"))
    ]
    return {len(pool["nodes"]): pool for pool in sorted(found, key=lambda p: len(p["nodes"]))}


def published(folder: Path, model: str) -> dict[int, tuple[float, ...]]:
    """Rates of another planner by number of nodes, where the folder's README lists them as
    "model: N=5 91 · 84; 8 243 · 313; ..."."""
    path = folder / "README.md"
    text = path.read_text("utf-8") if path.exists() else ""
    listed = re.search(re.escape(model) + r": N=(.*?)\.(?:\s|$)", text)
    found: dict[int, tuple[float, ...]] = {}
    for part in listed.group(1).split(";") if listed else ():
        plain = re.sub(r"\([^)]*\)|> *\d+ s", "", part)
        numbers = [float(n) for n in re.findall(r"\d+(?:\.\d+)?", plain)]
        if len(numbers) > 1:
            found[int(numbers[0])] = tuple(numbers[1:])
    return found


def roomiest_first(ground: Ground) -> list[ReplicaFigures]:
    """Chains of the nodes with most memory, each full, wherever they stand."""
    free = sorted(range(len(ground.machines)), key=lambda i: (-ground.machines[i].room_bytes, i))
    chains: list[ReplicaFigures] = []
    while free:
        stages: list[tuple[int, int]] = []
        left = ground.num_layers
        for index in free:
            machine, is_first = ground.machines[index], not stages
            whole = machine.layers_max(is_first=is_first, is_last=True)
            plain = machine.layers_max(is_first=is_first, is_last=False)
            count = left if whole >= left else min(plain, left - 1)
            if count < 1:
                continue
            stages.append((index, count))
            left -= count
            if not left:
                break
        if left:
            break
        chains.append(replica_figures(ground, Replica(tuple(stages))))
        taken = {index for index, _ in stages}
        free = [index for index in free if index not in taken]
    return chains
