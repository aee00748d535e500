"""What the clockwork moves: requests, machines as they run, and what a strategy may look at."""

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from plait.types import LayerSpan
from scheduler.simulation.patience import Patience
from scheduler.simulation.pool import Pool
from scheduler.simulation.trace import Arrival

Pipeline = tuple[tuple[int, LayerSpan], ...]
"""Machines by their place in the pool, and what each runs, in order."""


@dataclass(frozen=True, slots=True)
class Hop:
    """A stage of a route: the machine's place in the pool, how many layers it runs."""

    node: int
    num_layers: int
    is_last: bool


@dataclass(slots=True, eq=False)
class Request:
    """A request under way. Items of an older `epoch` are void."""

    number: int
    arrival: Arrival
    route: tuple[Hop, ...] = ()
    epoch: int = 0
    num_generated: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    waiting_since_s: float = 0.0
    opened_s: float = 0.0
    expected_ttft_s: float = 0.0

    def prompt_left(self, now_s: float) -> int:
        """Tokens that are not read yet, by what was expected when its chain was chosen."""
        if self.num_generated or self.expected_ttft_s <= 0.0:
            return 0
        share = 1.0 - (now_s - self.opened_s) / self.expected_ttft_s
        return int(max(0.0, share) * self.arrival.prompt_tokens)

    @property
    def kv_tokens(self) -> int:
        """Slots on every stage."""
        return self.arrival.prompt_tokens + self.arrival.new_tokens


Item = tuple[Request, int, int]
"""A decode: request, epoch, stage."""
Chunk = tuple[Request, int, int, int, bool]
"""A prompt chunk: request, epoch, stage, tokens, whether it is the last one."""


@dataclass(slots=True, eq=False)
class Node:
    """One machine as it runs."""

    patience: Patience
    is_up: bool = True
    span: LayerSpan | None = None
    ready_s: float = 0.0
    kv_tokens: int = 0
    kv_free: int = 0
    requests: dict[int, Request] = field(default_factory=dict)
    decodes: list[Item] = field(default_factory=list)
    chunks: deque[Chunk] = field(default_factory=deque)
    is_busy: bool = False
    epoch: int = 0
    decode_link_s: float = 0.0
    prompt_link_s: float = 0.0
    wake_s: float = -1.0

    def ready(self) -> set[int]:
        """Requests of which something waits for a step."""
        decodes = {item[0].number for item in self.decodes if item[0].epoch == item[1]}
        return decodes | {chunk[0].number for chunk in self.chunks if chunk[0].epoch == chunk[1]}


class World(Protocol):
    """The network as a strategy sees it. Reads only."""

    pool: Pool
    now_s: float
    nodes: list[Node]

    def spans(self) -> dict[int, LayerSpan]:
        """Nodes that are up and have loaded what they hold."""
