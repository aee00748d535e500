"""The clockwork: arrivals, prompt chunks, decode steps, frames on links, nodes that come and go.

A step takes all decodes that wait (up to the batch's limit) and a bounded number of prompt rows.
What leaves a step for the same next node travels as one frame. A frame holds the uplink for its
bytes; decodes do not wait for prompts there. KV is reserved along the whole chain or not at all.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from plait.types import LayerSpan
from scheduler.simulation.budget import StepBudget
from scheduler.simulation.churn import Change
from scheduler.simulation.gateway import Gateway
from scheduler.simulation.patience import Patience
from scheduler.simulation.pool import Pool
from scheduler.simulation.report import Outcome
from scheduler.simulation.state import Chunk, Hop, Item, Node, Prompts, Request
from scheduler.simulation.strategy import Strategy
from scheduler.simulation.trace import Arrival
from scheduler.simulation.ways import Ways

CHUNK_TOKENS: Final = 256
FRAME_TOKENS: Final = 128
"""Of a prompt in a frame at most; a step may take several."""
DETECT_S: Final = 4.0
"""Until a node that left is missed: the lease."""
WAIT_LIMIT_S: Final = 30.0
ATTEMPTS_MAX: Final = 8
TOKEN_BYTES: Final = 16.0


class Engine:
    """One run. `run` may be called once."""

    def __init__(
        self,
        pool: Pool,
        trace: Sequence[Arrival],
        strategy: Strategy,
        *,
        churn: Sequence[Change] = (),
        batch_max: int = 64,
        chunk_tokens: int = CHUNK_TOKENS,
        load_bytes_per_s: float | None = None,
        group_max: int = 0,
    ) -> None:
        """Up to `group_max` requests on a node wait for each other's works, as nodes do, and a
        step beside decodes takes few rows of prompts; without, any step takes `chunk_tokens`."""
        self.pool = pool
        self.now_s = 0.0
        self.nodes = [Node(Patience(group_max)) for _ in pool.ground.machines]
        self._is_patient = group_max > 0
        self._ways = Ways(pool)
        self._gateway = Gateway(pool.gateway_s)
        self._strategy = strategy
        self._batch_max = batch_max
        self._chunk_tokens = chunk_tokens
        self._load_bytes_per_s = load_bytes_per_s
        self._heap: list[tuple[float, int, int, object]] = []
        self._num_events = 0
        self._watch: Callable[[float], None] = lambda _: None
        self._queue: deque[Request] = deque()
        self._outcomes: list[Outcome] = []
        self._num_open = len(trace)
        for number, arrival in enumerate(trace):
            self._at(arrival.at_s, _ARRIVE, Request(number, arrival))
        for change in churn:
            self._at(change.at_s, _CHANGE, change)

    def run(self, watch: Callable[[float], None] = lambda _: None) -> list[Outcome]:
        """Every request's outcome, in the order they ended; `watch` hears the time now and then."""
        self._watch = watch
        self._apply(self._strategy.plan(self))
        self._strategy.serving_changed(self)
        while self._heap and self._num_open > 0:
            self.now_s, _, kind, what = heapq.heappop(self._heap)
            self._handle(kind, what)
        return self._outcomes

    def spans(self) -> dict[int, LayerSpan]:
        """Nodes that are up and have loaded what they hold."""
        return {
            i: node.span
            for i, node in enumerate(self.nodes)
            if node.is_up and node.span is not None and node.ready_s <= self.now_s
        }

    # --- events -------------------------------------------------------------------------------

    def _at(self, at_s: float, kind: int, what: object) -> None:
        self._num_events += 1
        heapq.heappush(self._heap, (at_s, self._num_events, kind, what))

    def _handle(self, kind: int, what: object) -> None:
        if kind == _STEP:
            self._step_done(*what)  # type: ignore[misc]
        elif kind == _WAKE:
            self._woken(*what)  # type: ignore[misc]
        elif kind == _GATEWAY:
            self._pass_gateway()
        elif kind == _DECODES:
            self._decodes_came(*what)  # type: ignore[misc]
        elif kind == _CHUNK:
            self._chunk_came(*what)  # type: ignore[misc]
        elif kind == _ARRIVE:
            assert isinstance(what, Request)
            self._watch(self.now_s)
            what.waiting_since_s = self.now_s
            self._queue.append(what)
            self._at(self.now_s + WAIT_LIMIT_S, _TIMEOUT, what)
            self._dispatch()
        elif kind == _CHANGE:
            assert isinstance(what, Change)
            self._changed(what)
        elif kind == _MISSED:
            assert isinstance(what, int)
            self._missed(what)
        elif kind == _TIMEOUT:
            assert isinstance(what, Request)
            self._overdue(what)
        else:
            self._strategy.serving_changed(self)
            self._dispatch()

    def _dispatch(self) -> None:
        """First come, first served."""
        while self._queue:
            route = self._strategy.route(self, self._queue[0])
            if route is None:
                return
            self._open(self._queue.popleft(), route)

    def _open(self, request: Request, route: tuple[Hop, ...]) -> None:
        request.route = route
        request.epoch += 1
        request.opened_s = self.now_s
        need = request.kv_tokens
        for stage, hop in enumerate(route):
            node = self.nodes[hop.node]
            node.kv_free -= need
            node.requests[request.number] = request
            node.patience.opened(self._ways.travel_s(route, stage), len(node.requests))
        self._strategy.reserved(self, route)
        self._gateway.admit(request, self.now_s)
        self._pass_gateway()

    def _pass_gateway(self) -> None:
        """Whoever the gateway is done with is on its way."""
        for request in self._gateway.through(self.now_s):
            self._send_prompt(request)
        next_s = self._gateway.next_s()
        if next_s is not None:
            self._at(max(next_s, self.now_s), _GATEWAY, None)

    def _send_prompt(self, request: Request) -> None:
        route = request.route
        first = route[0].node
        at_s = self.now_s + self._ways.opening_s(route) + self._ways.gateway_s(first)
        # What was generated before a chain broke is read again.
        left = request.arrival.prompt_tokens + request.num_generated
        while left > 0:
            tokens = min(left, self._chunk_tokens, FRAME_TOKENS)
            left -= tokens
            chunk: Chunk = (request, request.epoch, 0, tokens, left == 0)
            self._at(at_s, _CHUNK, (first, chunk))

    def _decodes_came(self, at: int, items: list[Item]) -> None:
        node = self.nodes[at]
        if node.is_up:
            node.decodes += items
            if not node.is_busy:
                self._start(at, node)

    def _chunk_came(self, at: int, chunk: Chunk) -> None:
        node = self.nodes[at]
        if node.is_up:
            node.prompts.add(chunk)
            if not node.is_busy:
                self._start(at, node)

    def _start(self, at: int, node: Node) -> None:
        """Begin a step with what waits and is still wanted, once nothing is worth waiting for."""
        if self._is_patient and self._waits(at, node):
            return
        waiting = [item for item in node.decodes if item[0].epoch == item[1]]
        most = 1 if self._is_patient and node.patience.is_roomy else self._batch_max
        items, node.decodes = waiting[:most], waiting[most:]
        chunks = node.prompts.take(self._prompt_rows_max(node, bool(waiting)))
        tokens = sum(chunk[3] for chunk in chunks)
        if not items and not chunks:
            return
        num_layers = num_heads = 0
        for request, _, stage in items:
            hop = request.route[stage]
            num_layers = max(num_layers, hop.num_layers)
            num_heads += hop.is_last
        for request, _, stage, _, is_final in chunks:
            hop = request.route[stage]
            num_layers = max(num_layers, hop.num_layers)
            num_heads += hop.is_last and is_final
        if self._is_patient:
            numbers = [item[0].number for item in items]
            node.patience.started(numbers + [chunk[0].number for chunk in chunks])
        node.is_busy = True
        took_s = self.pool.step_s(at, num_layers, len(items), tokens, num_heads=num_heads)
        self._at(self.now_s + took_s, _STEP, (at, node.epoch, took_s, items, chunks))

    def _prompt_rows_max(self, node: Node, is_decode_ready: bool) -> int:
        if not self._is_patient:
            return self._chunk_tokens
        rows_max = node.budget.prompt_rows_max(
            is_decoding=bool(node.decoding), is_decode_ready=is_decode_ready
        )
        return self._chunk_tokens if rows_max is None else min(rows_max, self._chunk_tokens)

    def _waits(self, at: int, node: Node) -> bool:
        """Whether works that are about to come are waited for."""
        ready = node.ready()
        until_s = node.patience.waits_until(self.now_s, ready, len(node.requests))
        if until_s is None or not ready:
            return False
        if node.wake_s != until_s:
            node.wake_s = until_s
            self._at(until_s, _WAKE, (at, node.epoch))
        return True

    def _woken(self, at: int, epoch: int) -> None:
        node = self.nodes[at]
        if node.epoch == epoch and not node.is_busy and (node.decodes or node.prompts):
            self._start(at, node)

    def _step_done(
        self, at: int, epoch: int, took_s: float, items: list[Item], chunks: list[Chunk]
    ) -> None:
        node = self.nodes[at]
        if node.epoch != epoch:
            return
        node.is_busy = False
        node.patience.ended(len(items) + len(chunks), took_s, self.now_s)
        node.budget.record(len(items), sum(chunk[3] for chunk in chunks), took_s)
        onward: dict[int, list[Item]] = {}
        back: dict[int, list[Item]] = {}
        num_frames = len(items)
        for request, born, stage in items:
            if request.epoch == born:
                self._advance(request, stage, onward, back)
        for request, born, stage, tokens, is_final in chunks:
            if request.epoch != born:
                continue
            if is_final:
                node.decoding.add(request.number)
            if stage + 1 < len(request.route):
                chunk: Chunk = (request, born, stage + 1, tokens, is_final)
                to = request.route[stage + 1].node
                there_s = self._ways.chunk_arrives_s(self.now_s, at, node, to, tokens)
                self._at(there_s + num_frames * self.pool.frame_s, _CHUNK, (to, chunk))
                num_frames += 1
            elif is_final:
                self._advance(request, stage, onward, back)
        for to, group in onward.items():
            there_s = self._ways.decodes_arrive_s(self.now_s, at, node, to, len(group))
            self._one_by_one(there_s, to, group)
        for to, group in back.items():
            self._one_by_one(self.now_s + self._ways.half_rtt_s(at, to), to, group)
        if node.decodes or node.prompts:
            self._start(at, node)

    def _one_by_one(self, there_s: float, to: int, group: list[Item]) -> None:
        """What leaves a step together comes a frame's time apart: one loop packs and reads it."""
        apart_s = self.pool.frame_s
        for at, items in enumerate([[item] for item in group] if apart_s else [group]):
            self._at(there_s + at * apart_s, _DECODES, (to, items))

    def _advance(
        self,
        request: Request,
        stage: int,
        onward: dict[int, list[Item]],
        back: dict[int, list[Item]],
    ) -> None:
        """A decode goes to the next stage; from the last one it is a token."""
        route = request.route
        if stage + 1 < len(route):
            item: Item = (request, request.epoch, stage + 1)
            onward.setdefault(route[stage + 1].node, []).append(item)
            return
        request.num_generated += 1
        seen_s = self.now_s + self._ways.gateway_s(route[-1].node)
        request.last_s = seen_s
        if request.first_s is None:
            request.first_s = seen_s
        if request.num_generated >= request.arrival.new_tokens:
            self._close(request)
            self._end(request, is_finished=True)
            self._dispatch()
            return
        back.setdefault(route[0].node, []).append((request, request.epoch, 0))

    # --- ends and changes ---------------------------------------------------------------------

    def _close(self, request: Request) -> None:
        """Give the KV back. Items under way are void."""
        need, route = request.kv_tokens, request.route
        for hop in route:
            node = self.nodes[hop.node]
            node.decoding.discard(request.number)
            if node.requests.pop(request.number, None) is not None:
                node.kv_free += need
                node.patience.closed(request.number)
        request.route = ()
        request.epoch += 1
        self._strategy.released(self, route)

    def _end(self, request: Request, *, is_finished: bool) -> None:
        self._num_open -= 1
        self._outcomes.append(
            Outcome(
                number=request.number,
                arrival=request.arrival,
                is_finished=is_finished,
                num_generated=request.num_generated,
                num_attempts=(request.epoch + 1) // 2,
                first_s=request.first_s,
                last_s=request.last_s if is_finished else self.now_s,
            )
        )

    def _overdue(self, request: Request) -> None:
        """It waited as long as anybody should."""
        is_waiting = not request.route and request in self._queue
        if is_waiting and self.now_s - request.waiting_since_s >= WAIT_LIMIT_S - 1e-9:
            self._queue.remove(request)
            self._end(request, is_finished=False)

    def _changed(self, change: Change) -> None:
        node = self.nodes[change.node]
        if change.is_leave:
            node.is_up = False
            node.epoch += 1
            node.is_busy = False
            node.decodes, node.prompts = [], Prompts()
            node.patience, node.budget = Patience(node.patience.group_max), StepBudget()
            self._at(self.now_s + DETECT_S, _MISSED, change.node)
        else:
            node.is_up, node.span = True, None
            self._apply(self._strategy.plan(self))

    def _missed(self, at: int) -> None:
        """Requests over it go to the head of the queue; what it held is planned anew."""
        if self.nodes[at].is_up:
            return
        self._drop(at)
        self._apply(self._strategy.plan(self))
        self._strategy.serving_changed(self)
        self._dispatch()

    def _drop(self, at: int) -> None:
        """Break every chain over a node."""
        node = self.nodes[at]
        broken = sorted(node.requests.values(), key=lambda r: r.number)
        node.span = None
        for request in broken:
            self._close(request)
        for request in reversed(broken):
            if (request.epoch + 1) // 2 >= ATTEMPTS_MAX:
                self._end(request, is_finished=False)
                continue
            request.waiting_since_s = self.now_s
            self._queue.appendleft(request)
            self._at(self.now_s + WAIT_LIMIT_S, _TIMEOUT, request)

    def _apply(self, plan: dict[int, LayerSpan]) -> None:
        """Nodes load what is new to them, over their downlink; whoever is not in it is idle."""
        for at, node in enumerate(self.nodes):
            span = plan.get(at) if node.is_up else None
            if span == node.span:
                continue
            if node.requests:
                self._drop(at)
            fresh = len(span) if span is not None else 0
            if span is not None and node.span is not None:
                common = min(span.end, node.span.end) - max(span.start, node.span.start)
                fresh -= max(0, common)
            node.span = span
            if span is None:
                continue
            node.kv_tokens = node.kv_free = self.pool.kv_tokens(at, span)
            if self.now_s > 0.0:
                machine = self.pool.ground.machines[at]
                rate = self._load_bytes_per_s or machine.down_bytes_per_s
                node.ready_s = self.now_s + fresh * machine.layer_bytes / rate
                self._at(node.ready_s, _LOADED, at)


_ARRIVE, _STEP, _DECODES, _CHUNK, _CHANGE, _MISSED, _TIMEOUT, _LOADED, _WAKE, _GATEWAY = range(10)
