"""What the clockwork moves: requests, machines as they run, and what a strategy may look at."""

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from plait.types import LayerSpan
from scheduler.simulation.budget import StepBudget
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


class Prompts:
    """Rows that wait on a node, by request, in the order in which they came; a step takes one piece
    of each."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[Chunk]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, chunk: Chunk) -> None:
        """A chunk came."""
        self._waiting.setdefault(chunk[0].number, deque()).append(chunk)

    def numbers(self) -> set[int]:
        """Requests of which rows wait that are still wanted."""
        return {
            number
            for number, chunks in self._waiting.items()
            if any(chunk[0].epoch == chunk[1] for chunk in chunks)
        }

    def take(self, rows_max: int) -> list[Chunk]:
        """At most so many rows: the oldest prompts whole, the last one cut to what is left."""
        taken: list[Chunk] = []
        for number, chunks in list(self._waiting.items()):
            piece = _cut(chunks, rows_max)
            if not chunks:
                del self._waiting[number]
            if piece is not None:
                taken.append(piece)
                rows_max -= piece[3]
        return taken


@dataclass(slots=True, eq=False)
class Node:
    """One machine as it runs. `decoding` are requests whose prompts have run here."""

    patience: Patience
    budget: StepBudget = field(default_factory=StepBudget)
    prompts: Prompts = field(default_factory=Prompts)
    decoding: set[int] = field(default_factory=set)
    is_up: bool = True
    span: LayerSpan | None = None
    ready_s: float = 0.0
    kv_tokens: int = 0
    kv_free: int = 0
    requests: dict[int, Request] = field(default_factory=dict)
    decodes: list[Item] = field(default_factory=list)
    is_busy: bool = False
    epoch: int = 0
    decode_link_s: float = 0.0
    prompt_link_s: float = 0.0
    wake_s: float = -1.0

    def ready(self) -> set[int]:
        """Requests of which something waits for a step."""
        decodes = {item[0].number for item in self.decodes if item[0].epoch == item[1]}
        return decodes | self.prompts.numbers()


class World(Protocol):
    """The network as a strategy sees it. Reads only."""

    pool: Pool
    now_s: float
    nodes: list[Node]

    def spans(self) -> dict[int, LayerSpan]:
        """Nodes that are up and have loaded what they hold."""


def _cut(chunks: deque[Chunk], rows_max: int) -> Chunk | None:
    """What may go of one request, several chunks as one; void chunks are dropped."""
    rows, piece = 0, None
    while chunks and rows < rows_max:
        request, epoch, stage, tokens, is_final = chunks.popleft()
        if request.epoch != epoch:
            continue
        left = max(0, rows + tokens - rows_max)
        if left:
            chunks.appendleft((request, epoch, stage, left, is_final))
        rows += tokens - left
        piece = (request, epoch, stage, rows, is_final and not left)
    return piece
