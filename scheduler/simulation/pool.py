"""What is simulated: machines, the ground between them, one model."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from plait.types import LayerSpan, ModelSpec, NodeProfile
from scheduler.cost import Links, stage_cost
from scheduler.planning.ground import Ground
from scheduler.planning.measured import measured_machine

SEQUENCE_TOKENS: Final = 2_048
GATEWAY_MILE_S: Final = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """`prefill_s[i]` is what a further prompt token adds to a layer on machine i where it was
    measured, 0 where the curve's compute tells it. A machine's `kv_sequence_bytes` are for
    `sequence_tokens`. `coordinator_rtt_s[i]` is machine i's round trip to the gateway. `frame_s` is
    what a frame takes beside its bytes and the round trip, packed, woken up for, unpacked, and how
    long after it the next one of the same step comes. `gateway_s` is the gateway's own work for a
    request before its prompt is on the way."""

    ground: Ground
    prefill_s: tuple[float, ...]
    coordinator_rtt_s: tuple[float, ...]
    frame_s: float = 0.0
    gateway_s: float = 0.0
    sequence_tokens: int = SEQUENCE_TOKENS

    def kv_tokens(self, machine: int, span: LayerSpan) -> int:
        """KV slots beside the weights of `span`."""
        own, last = self.ground.machines[machine], self.ground.num_layers
        is_first, is_last = span.start == 0, span.end == last
        per_token = len(span) * own.kv_sequence_bytes / self.sequence_tokens
        if own.kv_bytes is not None:
            return int(own.kv_bytes // per_token)
        ends = own.both_bytes if is_first and is_last else 0.0
        if is_first != is_last:
            ends = own.first_bytes if is_first else own.last_bytes
        return max(0, int((own.room_bytes - ends - len(span) * own.layer_bytes) // per_token))

    def step_s(
        self, machine: int, num_layers: int, num_decodes: int, prompt_tokens: int, *, num_heads: int
    ) -> float:
        """One step of decodes and prompt chunks together; `num_heads` rows are sampled."""
        curve, prefill_s = self.ground.machines[machine].curve, self.prefill_s[machine]
        if prefill_s > 0.0:
            first = 1 if num_decodes == 0 else 0  # a step reads the weights with its first row
            layer = curve.layer_s(num_decodes + first) + prefill_s * (prompt_tokens - first)
        else:
            rows = num_decodes + prompt_tokens
            layer = max(curve.compute_s * rows, curve.read_s + curve.kv_s * num_decodes)
            layer += curve.sync_rows_s(rows)
        total = curve.overhead_s + num_layers * layer
        if num_heads:
            total += max(curve.head_compute_s * num_heads, curve.head_read_s)
        return total


def nominal_pool(ground: Ground, *, sequence_tokens: int = SEQUENCE_TOKENS) -> Pool:
    """A pool of nominal figures. The gateway stands in the first machine's region."""
    home = ground.machines[0].region
    return Pool(
        ground=ground,
        prefill_s=(0.0,) * len(ground.machines),
        coordinator_rtt_s=tuple(
            ground.region_rtt_s[home][m.region] + m.last_mile_s + GATEWAY_MILE_S
            for m in ground.machines
        ),
        sequence_tokens=sequence_tokens,
    )


def measured_pool(
    profiles: Iterable[NodeProfile],
    spec: ModelSpec,
    links: Links,
    *,
    hop_bytes: int,
    frame_s: float = 0.0,
    gateway_s: float = 0.0,
) -> Pool:
    """The pool of plait's own profiles. Nodes as far from everybody else share a region."""
    nodes = list(profiles)
    regions = _regions([[links.rtt_ms(a.node_id, b.node_id) for b in nodes] for a in nodes])
    members = [[i for i, r in enumerate(regions) if r == region] for region in sorted(set(regions))]

    def rtt_s(a: list[int], b: list[int]) -> float:
        one, two = a[0], b[0] if a is not b else b[-1]
        return links.rtt_ms(nodes[one].node_id, nodes[two].node_id) / 1e3

    costs = [stage_cost(p, spec) for p in nodes]
    ground = Ground(
        num_layers=spec.num_layers,
        activation_bytes=float(hop_bytes),
        regions=tuple(nodes[own[0]].node_id for own in members),
        region_rtt_s=tuple(tuple(rtt_s(a, b) for b in members) for a in members),
        machines=tuple(
            measured_machine(
                p, spec, cost, kind=p.device_name, region=r, sequence_tokens=SEQUENCE_TOKENS
            )
            for r, p, cost in zip(regions, nodes, costs, strict=True)
        ),
    )
    return Pool(
        ground=ground,
        prefill_s=tuple(c.prefill_layer_ms_per_token / 1e3 for c in costs),
        coordinator_rtt_s=tuple(links.coordinator_rtt_ms(p.node_id) / 1e3 for p in nodes),
        frame_s=frame_s,
        gateway_s=gateway_s,
    )


def _regions(rtt_ms: list[list[float]]) -> list[int]:
    """By node: the first region whose members see all others as it does, and each other alike."""
    firsts: list[int] = []
    inner: list[float | None] = []
    regions: list[int] = []
    for i, row in enumerate(rtt_ms):
        for region, j in enumerate(firsts):
            known = inner[region]
            if (known is None or known == row[j]) and all(
                row[k] == rtt_ms[j][k]
                for k in range(len(rtt_ms))
                if k not in (i, j) and (k >= i or regions[k] != region)
            ):
                inner[region] = row[j]
                regions.append(region)
                break
        else:
            firsts.append(i)
            inner.append(None)
            regions.append(len(firsts) - 1)
    return regions
