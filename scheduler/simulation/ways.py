"""What frames take from machine to machine: bytes through links, half round trips."""

from itertools import pairwise

from scheduler.simulation.pool import Pool
from scheduler.simulation.state import Hop, Node

Route = tuple[Hop, ...]


class Ways:
    """The links of a pool. Times are seconds of the simulated clock."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def gateway_s(self, at: int) -> float:
        """Between the gateway and a machine, one way."""
        return self._pool.coordinator_rtt_s[at] / 2 + self._pool.frame_s

    def half_rtt_s(self, a: int, b: int) -> float:
        """A small frame from one machine to another."""
        return self._wire_s(a, b) + self._pool.frame_s

    def opening_s(self, route: Route) -> float:
        """The chain opens hop by hop, and each answers the one before it."""
        hops_s = sum(self.half_rtt_s(a.node, b.node) for a, b in pairwise(route))
        return 2 * (self.gateway_s(route[0].node) + hops_s)

    def travel_s(self, route: Route, stage: int) -> float:
        """What a stage's links say of the way to it and on from it: half of both round trips."""
        own, after = route[stage].node, route[(stage + 1) % len(route)].node
        return self._wire_s(route[stage - 1].node, own) + self._wire_s(own, after)

    def decodes_arrive_s(self, now_s: float, at: int, node: Node, to: int, rows: int) -> float:
        """When decodes that leave `node` together are at `to`: behind other decodes alone."""
        num_bytes = rows * self._pool.ground.activation_bytes
        begin_s = max(now_s, node.decode_link_s)
        node.decode_link_s = begin_s + self._sent_s(at, num_bytes)
        return begin_s + self._through_s(at, to, num_bytes) + self.half_rtt_s(at, to)

    def chunk_arrives_s(self, now_s: float, at: int, node: Node, to: int, rows: int) -> float:
        """When a prompt's chunk is at `to`: behind everything that holds the uplink."""
        num_bytes = rows * self._pool.ground.activation_bytes
        begin_s = max(now_s, node.prompt_link_s, node.decode_link_s)
        node.prompt_link_s = begin_s + self._sent_s(at, num_bytes)
        return begin_s + self._through_s(at, to, num_bytes) + self.half_rtt_s(at, to)

    def _wire_s(self, a: int, b: int) -> float:
        machines = self._pool.ground.machines
        return self._pool.ground.rtt_s(machines[a], machines[b]) / 2

    def _sent_s(self, at: int, num_bytes: float) -> float:
        return num_bytes / self._pool.ground.machines[at].up_bytes_per_s

    def _through_s(self, at: int, to: int, num_bytes: float) -> float:
        machines = self._pool.ground.machines
        return num_bytes / min(machines[at].up_bytes_per_s, machines[to].down_bytes_per_s)
