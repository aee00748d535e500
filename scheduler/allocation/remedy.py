"""What would make a pool hold a model: found by asking the planner about larger pools.

Arithmetic bounds where to begin: no planner succeeds below it. From there on the planner is asked,
so that whoever does what is advised is served. Off the event loop where there are many nodes.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from plait.errors import UnavailableError
from plait.types import (
    KvDtype,
    LayerSpan,
    ModelId,
    ModelSpec,
    NodeId,
    NodeProfile,
    missing_spans,
)
from scheduler.allocation.allocate import allocate_greedy
from scheduler.allocation.fit import Room, ends_fit
from scheduler.allocation.problem import Allocation, AllocationProblem
from scheduler.allocation.shortage import (
    Shortage,
    gib,
    layers_text,
    printable_down,
    printable_up,
    span_bytes,
    widest_dtype,
)
from scheduler.cost import layers_max, role_bytes

NODES_MAX: Final = 64
"""Of larger pools the planner is asked about the part that matters."""
STEPS_MAX: Final = 8
"""Questions one by one from the bound on, then by doubling."""
PROBES_MAX: Final = 32
"""Questions for one model in all."""
DOUBLINGS_MAX: Final = 16


def shortages(problem: AllocationProblem, plan: Allocation | None) -> tuple[Shortage, ...]:
    """One for each model that is not covered by `plan`, or by what is held where there is none."""
    asked = problem if plan is None else replace(problem, held=plan.placements)
    found: list[Shortage] = []
    for spec in problem.models:
        held = [p.span for p in asked.held if p.model_id == spec.model_id]
        missing = missing_spans(held, spec.num_layers)
        if missing:
            found.append(_shortage(_trimmed(asked), spec, tuple(missing)))
    return tuple(found)


def explained(problem: AllocationProblem) -> str:
    """What the models of a problem without a plan lack, and what helps, in sentences."""
    layers = {spec.model_id: spec.num_layers for spec in problem.models}
    return " ".join(
        f"Not enough memory for {lack.model_id}: "
        f"{layers_text(lack.missing, layers[lack.model_id])}, {gib(lack.short_bytes)} are missing. "
        f"{lack.advice}"
        for lack in shortages(problem, None)
    )


def _shortage(
    problem: AllocationProblem, spec: ModelSpec, missing: tuple[LayerSpan, ...]
) -> Shortage:
    search = _Search(problem, spec)
    one_bytes = search.one_node_bytes()
    several = search.several_nodes(one_bytes)
    short_bytes = one_bytes
    if short_bytes is None:
        dtype = search.newcomer.compute_dtype
        short_bytes = sum(span_bytes(spec, s, dtype, search.kv_tokens) for s in missing)
    return Shortage(
        model_id=spec.model_id,
        missing=missing,
        short_bytes=printable_up(short_bytes),
        one_node_bytes=one_bytes,
        num_nodes=several[0] if several is not None else None,
        node_bytes=several[1] if several is not None else None,
    )


class _Search:
    """Asks about one model of one problem. Counts its questions."""

    def __init__(self, problem: AllocationProblem, spec: ModelSpec) -> None:
        self._problem = problem
        self._spec = spec
        self._num_probes = 0
        # What is served already must stay so.
        self._needed = {spec.model_id, *_served(problem)}
        self.kv_tokens = max(1, min(problem.kv_tokens_min, spec.context_tokens_max))
        self.newcomer = _newcomer(problem)
        self._rooms = [_held_room(problem, self._room(p), p, spec) for p in problem.nodes]

    def one_node_bytes(self) -> int | None:
        """The smallest node that would do, alone; None: none was found."""
        sizes = self._sizes()
        return _first(sizes, self._from(sizes), partial(self._suffices, 1))

    def several_nodes(self, one_bytes: int | None) -> tuple[int, int] | None:
        """How many more nodes like the largest one would do; where no number would, of the
        smallest double of its size that helps. None: one is enough, or none was found."""
        largest = max((p.memory_bytes for p in self._problem.nodes), default=0)
        size = printable_down(largest)
        for _ in range(DOUBLINGS_MAX):
            if size <= 0 or (one_bytes is not None and size >= one_bytes):
                return None
            most = self._spec.num_layers + 2
            counts = list(range(1, most + 1))
            start = next((i for i, k in enumerate(counts) if self._may_fit(k, size)), None)
            if start is not None:
                count = _first(counts, start, partial(self._suffices_of, size))
                if count is not None:
                    return count, size
            size = printable_down(2 * size)
        return None

    def _suffices_of(self, size_bytes: int, count: int) -> bool:
        return self._suffices(count, size_bytes)

    def _suffices(self, count: int, size_bytes: int) -> bool:
        """Whether the planner covers the model with so many more nodes, quick or slow."""
        if self._num_probes >= PROBES_MAX:
            return False
        self._num_probes += 1
        return all(
            self._is_covered([replace(kind, memory_bytes=size_bytes)] * count)
            for kind in (_slow(self.newcomer), self.newcomer)
        )

    def _is_covered(self, newcomers: list[NodeProfile]) -> bool:
        named = (replace(p, node_id=NodeId(f"newcomer {i}")) for i, p in enumerate(newcomers))
        larger = replace(self._problem, nodes=(*self._problem.nodes, *named))
        try:
            plan = allocate_greedy(larger)
        except UnavailableError:
            return False
        return self._needed <= {p.model_id for p in plan.placements}

    def _may_fit(self, count: int, size_bytes: int) -> bool:
        """Necessary, whatever the planner does: layers enough, and somebody for either end."""
        new = self._room(replace(self.newcomer, memory_bytes=size_bytes))
        return ends_fit([*self._rooms, *[new] * count], self._spec.num_layers)

    def _room(self, profile: NodeProfile) -> Room:
        def most(*, is_first: bool, is_last: bool) -> int:
            return layers_max(
                profile, self._spec, self.kv_tokens, is_first=is_first, is_last=is_last
            )

        return Room(
            plain=most(is_first=False, is_last=False),
            first=most(is_first=True, is_last=False),
            last=most(is_first=False, is_last=True),
            alone=most(is_first=True, is_last=True),
        )

    def _sizes(self) -> list[int]:
        """Sizes at which a node begins to hold one layer more in some role, ascending."""
        spec, dtype = self._spec, self.newcomer.compute_dtype
        layer_bytes = spec.layer_params * dtype.num_bytes
        layer_bytes += self.kv_tokens * spec.kv_bytes_per_token(1, dtype)
        roles = [
            role_bytes(spec, dtype, is_first=is_first, is_last=is_last)
            for is_first in (False, True)
            for is_last in (False, True)
        ]
        return sorted(
            {
                printable_up(role + count * layer_bytes)
                for role in roles
                for count in range(1, spec.num_layers + 1)
            }
        )

    def _from(self, sizes: list[int]) -> int:
        """The first size that arithmetic allows; by halving, as more memory never holds less."""
        low, high = 0, len(sizes) - 1
        while low < high:
            middle = (low + high) // 2
            if self._may_fit(1, sizes[middle]):
                high = middle
            else:
                low = middle + 1
        return low


def _first(values: list[int], start: int, suffices: Callable[[int], bool]) -> int | None:
    """The first of `values` from `start` on that suffices: the next few one by one, then by
    doubling the step, and back by halving."""
    below = start - 1
    for at in _strides(start, len(values)):
        if suffices(values[at]):
            above = at
            break
        below = at
    else:
        return None
    while above - below > 1:
        middle = (below + above) // 2
        if suffices(values[middle]):
            above = middle
        else:
            below = middle
    return values[above]


def _strides(start: int, end: int) -> Iterator[int]:
    at, step = start, 1
    while at < end:
        yield at
        if at + 1 - start >= STEPS_MAX:
            step *= 2
        if at < end - 1:
            at = min(at + step, end - 1)
        else:
            return


def _held_room(
    problem: AllocationProblem, room: Room, profile: NodeProfile, spec: ModelSpec
) -> Room:
    """What is in memory already fits, and who must keep another model's layers has no room."""
    held = next((p for p in problem.held if p.node_id == profile.node_id), None)
    if held is None:
        return room
    if held.model_id != spec.model_id:
        return Room(0, 0, 0, 0) if held.node_id in problem.fixed else room
    count = len(held.span)
    plain = max(room.plain, count)
    is_first, is_last = held.span.start == 0, held.span.end == spec.num_layers
    return Room(
        plain=plain,
        first=max(room.first, plain if is_first else 0),
        last=max(room.last, plain if is_last else 0),
        alone=max(room.alone, count if is_first and is_last else 0),
    )


def _newcomer(problem: AllocationProblem) -> NodeProfile:
    """A node like the largest that is there; it computes in the widest type that is seen."""
    dtype = widest_dtype(problem.nodes)
    largest = max(problem.nodes, key=lambda p: (p.memory_bytes, p.node_id), default=None)
    if largest is not None:
        return replace(largest, compute_dtype=dtype, kv_dtype=KvDtype.NATIVE)
    return NodeProfile(
        node_id=NodeId("newcomer"),
        display_name="",
        device_kind="cpu",
        device_name="",
        memory_bytes=0,
        memory_bytes_per_s=0.0,
        flops_per_s=0.0,
        compute_dtype=dtype,
        coordinator_rtt_ms=0.0,
        up_bytes_per_s=0.0,
        down_bytes_per_s=0.0,
        timings=(),
        addresses=(),
    )


def _served(problem: AllocationProblem) -> list[ModelId]:
    spans: dict[ModelId, list[LayerSpan]] = {}
    for placement in problem.held:
        spans.setdefault(placement.model_id, []).append(placement.span)
    return [
        spec.model_id
        for spec in problem.models
        if not missing_spans(spans.get(spec.model_id, []), spec.num_layers)
    ]


def _slow(profile: NodeProfile) -> NodeProfile:
    """The same, but far off and slow in everything: nobody knows who will come."""
    return replace(
        profile, timings=(), memory_bytes_per_s=0.0, flops_per_s=0.0, coordinator_rtt_ms=1_000.0
    )


def _trimmed(problem: AllocationProblem) -> AllocationProblem:
    """The problem, or of a large one those who cover what is covered and the roomiest others: what
    suffices for them suffices for all."""
    if len(problem.nodes) <= NODES_MAX:
        return problem
    kept = dict.fromkeys(n for spec in problem.models for n in _thin_cover(problem, spec))
    by_room = sorted(problem.nodes, key=lambda p: (-p.memory_bytes, p.node_id))
    for profile in by_room[:NODES_MAX]:
        if len(kept) < NODES_MAX:
            kept[profile.node_id] = None
    return replace(
        problem,
        nodes=tuple(p for p in problem.nodes if p.node_id in kept),
        held=tuple(p for p in problem.held if p.node_id in kept),
        fixed=tuple(n for n in problem.fixed if n in kept),
        rtt_ms=tuple((pair, ms) for pair, ms in problem.rtt_ms if set(pair) <= kept.keys()),
    )


def _thin_cover(problem: AllocationProblem, spec: ModelSpec) -> list[NodeId]:
    """Few holders of all the layers that are held."""
    held = [p for p in problem.held if p.model_id == spec.model_id]
    chosen: list[NodeId] = []
    at = 0
    while ahead := [p for p in held if p.span.end > at]:
        at = max(at, min(p.span.start for p in ahead))
        over = [p for p in ahead if p.span.start <= at]
        best = max(over, key=lambda p: (p.span.end, p.node_id))
        chosen.append(best.node_id)
        at = best.span.end
    return chosen
