"""The baseline: fixed pipelines made greedily, blind to where nodes are, taken in turns.

After Parallax (arXiv 2509.26182) as published: phase 1 knows compute and memory, not round trips,
regions or KV; whoever loses a member stands still until somebody joins.
"""

from collections.abc import Sequence

from plait.types import LayerSpan
from scheduler.planning.ground import Machine
from scheduler.simulation.pool import Pool
from scheduler.simulation.state import Hop, Pipeline, Request, World


class RoundRobin:
    """Greedy pipelines, round robin over them; a full one is passed over."""

    name = "round-robin"

    def __init__(self) -> None:
        self._pipelines: list[Pipeline] = []
        self._serving: list[Pipeline] = []
        self._next = 0
        self._known: set[int] = set()

    def plan(self, world: World) -> dict[int, LayerSpan]:
        """Pipelines that lost nobody stay. On a join, everybody idle is put to work."""
        up = {i for i, node in enumerate(world.nodes) if node.is_up}
        self._pipelines = [p for p in self._pipelines if all(i in up for i, _ in p)]
        if up - self._known:
            used = {i for p in self._pipelines for i, _ in p}
            self._pipelines += greedy_pipelines(world.pool, sorted(up - used))
        self._known = up
        return {i: span for p in self._pipelines for i, span in p}

    def serving_changed(self, world: World) -> None:
        """A pipeline serves when all of it is loaded."""
        spans = world.spans()
        self._serving = [p for p in self._pipelines if all(spans.get(i) == s for i, s in p)]

    def route(self, world: World, request: Request) -> tuple[Hop, ...] | None:
        """The next pipeline in turn that has room."""
        for offset in range(len(self._serving)):
            at = (self._next + offset) % len(self._serving)
            pipeline = self._serving[at]
            if all(world.nodes[i].kv_free >= request.kv_tokens for i, _ in pipeline):
                self._next = at + 1
                return hops(pipeline)
        return None

    def reserved(self, world: World, route: tuple[Hop, ...]) -> None:
        """Turns are taken whatever the load is."""

    def released(self, world: World, route: tuple[Hop, ...]) -> None:
        """Nothing to learn from."""


def greedy_pipelines(pool: Pool, members: list[int]) -> list[Pipeline]:
    """Roomy nodes first, as few as hold the model; layers by compute, as far as memory goes."""
    machines, num_layers = pool.ground.machines, pool.ground.num_layers

    free = sorted(
        members, key=lambda i: (-machines[i].layers_max(is_first=False, is_last=False), i)
    )
    pipelines: list[Pipeline] = []
    while free:
        chain: list[int] = []
        for i in free:
            chain.append(i)
            caps = _caps(machines, chain)
            if sum(caps) >= num_layers:
                break
        else:
            return pipelines
        free = [i for i in free if i not in chain]
        weights = [
            1.0 / max(1e-9, machines[i].curve.read_s + machines[i].curve.compute_s) for i in chain
        ]
        pipelines.append(_spans(chain, _fill(caps, weights, num_layers)))
    return pipelines


def hops(pipeline: Pipeline) -> tuple[Hop, ...]:
    """A pipeline as a route."""
    last = len(pipeline) - 1
    return tuple(Hop(i, len(span), at == last) for at, (i, span) in enumerate(pipeline))


def _caps(machines: Sequence[Machine], chain: list[int]) -> list[int]:
    last = len(chain) - 1
    return [
        machines[i].layers_max(is_first=at == 0, is_last=at == last) for at, i in enumerate(chain)
    ]


def _fill(caps: list[int], weights: list[float], total: int) -> list[int]:
    """`total` layers in proportion to `weights`, none above its cap (water-filling)."""
    counts = [0] * len(caps)
    for _ in range(total):
        open_ = [i for i, cap in enumerate(caps) if counts[i] < cap]
        least = min(open_, key=lambda i: ((counts[i] + 1) / weights[i], i))
        counts[least] += 1
    return counts


def _spans(chain: list[int], counts: list[int]) -> Pipeline:
    spans: list[tuple[int, LayerSpan]] = []
    at = 0
    for i, count in zip(chain, counts, strict=True):
        if count:
            spans.append((i, LayerSpan(at, at + count)))
            at += count
    return tuple(spans)
