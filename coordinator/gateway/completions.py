"""Answering one HTTP completion request: all at once, or as server-sent events.

The work runs beside a watch on the connection: a client that leaves cancels its generations at
once, one that does not read is dropped after the stall limit.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from coordinator.gateway.dialect import ChoiceState, Dialect, Envelope, Event, Json, MakeDialect
from coordinator.gateway.event_ids import event_id
from coordinator.gateway.generate import Generator
from coordinator.gateway.happenings import CallDelta, Delta, Finished, Happening, Queued, Routed
from coordinator.gateway.http_errors import MakeError, error_response, json_bytes, json_response
from coordinator.gateway.limits import DoorLimits, Turnstile
from coordinator.gateway.reader import Reader, is_piece
from coordinator.gateway.schema import CompletionOrder
from coordinator.ports import ApiKey
from plait.clock import Clock
from plait.errors import CancelledByClientError, PlaitError, ServiceError
from plait.log import get
from plait.types import FinishReason
from scheduler.selection.fairness import SloClass

log = get("http")
_KEEPALIVE: Final = b": waiting for the network\n\n"


class ClientGoneError(Exception):
    """The connection closed, or its other end does not read."""


class Choices:
    """Several readers as one source of (index, happening)."""

    def __init__(
        self, readers: Sequence[Reader], waker: asyncio.Event, *, silence_s: float
    ) -> None:
        self._readers = readers
        self._waker = waker
        self._silence_s = silence_s
        self._silent_s = 0.0
        self._num_ended = 0

    @property
    def are_over(self) -> bool:
        return self._num_ended == len(self._readers)

    async def next(self, wait_s: float) -> tuple[int, Happening] | None:
        """The next happening of any reader; None where nothing came within `wait_s`."""
        while True:
            self._waker.clear()
            for index, reader in enumerate(self._readers):
                happening = reader.poll()
                if happening is not None:
                    self._silent_s = 0.0
                    self._num_ended += isinstance(happening, Finished)
                    return index, happening
            try:
                async with asyncio.timeout(wait_s):
                    await self._waker.wait()
            except TimeoutError:
                self._silent_s += wait_s
                if self._silent_s < self._silence_s:
                    return None
                for reader in self._readers:
                    reader.give_up()


class CompletionResponse(Response):
    """An ASGI response that generates while it is being sent."""

    def __init__(
        self,
        *,
        order: CompletionOrder,
        make_dialect: MakeDialect,
        make_error: MakeError,
        key: ApiKey,
        address: str,
        generator: Generator,
        turnstile: Turnstile,
        limits: DoorLimits,
        clock: Clock,
        response_id: str,
    ) -> None:
        super().__init__()
        self._order = order
        self._make_dialect = make_dialect
        self._make_error = make_error
        self._key = key
        self._address = address
        self._generator = generator
        self._turnstile = turnstile
        self._limits = limits
        self._response_id = response_id
        self._created_s = clock.unix_ms() // 1000

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; returns early, and cancels, when the client leaves."""
        work = asyncio.create_task(self._answer(scope, receive, send), name="completion")
        watch = asyncio.create_task(_until_gone(receive), name="completion watch")
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, watch):
                task.cancel()
            results = await asyncio.gather(work, watch, return_exceptions=True)
        failed = results[0]
        if isinstance(failed, ClientGoneError | asyncio.CancelledError):
            log.info("client_gone", response_id=self._response_id)
        elif isinstance(failed, BaseException):
            raise failed

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        bounded = _bounded(send, self._limits.stall_s)
        try:
            await self._generate(scope, receive, bounded)
        except PlaitError as error:  # before the status line: it becomes the status
            await error_response(error, self._make_error)(scope, receive, bounded)

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        num = len(self._order.orders)
        self._log_start()
        with ExitStack() as stack:
            stack.enter_context(
                self._turnstile.enter(key_id=self._key.key_id, address=self._address, num=num)
            )
            waker = asyncio.Event()
            readers: list[Reader] = []
            prompt_ids: list[int] = []
            for at, order in enumerate(self._order.orders):
                if at % self._order.choices_per_prompt == 0:
                    prompt_ids = await self._generator.encode(order)
                reader = await self._generator.start(
                    order,
                    key_id=self._key.key_id,
                    limits=self._key.limits,
                    prompt_ids=prompt_ids,
                    waker=waker,
                )
                stack.callback(reader.close)
                readers.append(reader)
            states = [
                ChoiceState(index, reader.generation.tokenizer)
                for index, reader in enumerate(readers)
            ]
            dialect = self._make_dialect(self._envelope(readers[0]))
            choices = Choices(readers, waker, silence_s=self._generator.limits.silence_s)
            if self._order.is_stream:
                stream = _EventStream(
                    self._order, dialect, states, self._limits, send, response_id=self._response_id
                )
                await stream.run(choices)
            else:
                content = await self._collect(choices, dialect, states)
                headers = {"x-request-id": self._response_id}
                await json_response(content, headers=headers)(scope, receive, send)

    def _envelope(self, first: Reader) -> Envelope:
        return Envelope(
            response_id=self._response_id,
            created_s=self._created_s,
            model_id=first.generation.model_id,
            is_chat=self._order.is_chat,
            top_logprobs=self._order.top_logprobs,
            service_tier=_tier(first.generation.slo),
            prompt_tokens=len(first.generation.prompt_ids),
            includes_usage=self._order.includes_usage,
            num_choices_per_prompt=self._order.choices_per_prompt,
            echo=self._order.echo,
        )

    def _log_start(self) -> None:
        user = self._order.user
        log.info(
            "completion",
            response_id=self._response_id,
            key_id=self._key.key_id,
            choices=len(self._order.orders),
            user=None if user is None else hashlib.sha256(user.encode()).hexdigest()[:12],
        )

    async def _collect(
        self, choices: Choices, dialect: Dialect, states: Sequence[ChoiceState]
    ) -> Json:
        ended: dict[int, Finished] = {}
        while not choices.are_over:
            found = await choices.next(self._limits.keepalive_s)
            if found is None:
                continue
            index, happening = found
            if isinstance(happening, Delta | CallDelta):
                states[index].add(happening)
            elif isinstance(happening, Finished):
                _raise_failure(happening)
                ended[index] = happening
        in_order = [ended[index] for index in range(len(states))]
        return dialect.answer(list(zip(states, in_order, strict=True)))


class _EventStream:
    """Server-sent events of one response."""

    def __init__(
        self,
        order: CompletionOrder,
        dialect: Dialect,
        states: Sequence[ChoiceState],
        limits: DoorLimits,
        send: Send,
        *,
        response_id: str,
    ) -> None:
        self._order = order
        self._dialect = dialect
        self._response_id = response_id
        self._states = states
        self._limits = limits
        self._send = send
        self._has_started = False
        self._ended: dict[int, Finished] = {}
        self._waiting = _KEEPALIVE
        resume = order.orders[0].resume
        self._num_pieces = resume.num_deltas if resume is not None else 0
        # What began before the stream was lost does not begin again.
        self._begun = {state.index for state in states} if self._num_pieces else set[int]()

    async def run(self, choices: Choices) -> None:
        """Send everything. A failure before the status line raises; after it, it is an event."""
        try:
            while not choices.are_over:
                wait_s = (
                    self._limits.keepalive_s if self._has_started else self._limits.headers_hold_s
                )
                found = await choices.next(wait_s)
                if found is None:
                    await self._write(self._waiting)
                elif isinstance(found[1], Queued):
                    self._waiting = _waiting_line(found[1])
                    if self._has_started:
                        await self._write(self._waiting)
                else:
                    await self._tell(*found)
        except PlaitError as error:
            if not self._has_started:
                raise
            await self._write(_bytes(self._dialect.failed(error)))
        except ClientGoneError:
            raise
        except Exception as error:  # the root of a stream, which must not end in silence
            log.error("bug", response_id=self._response_id, kind=type(error).__name__)
            if not self._has_started:
                raise
            failure = ServiceError("plait failed on this request; its log says why")
            await self._write(_bytes(self._dialect.failed(failure)))
        else:
            in_order = [self._ended[index] for index in sorted(self._ended)]
            closing = b"".join(_bytes(event) for event in self._dialect.closed(in_order))
            await self._write(closing + self._dialect.last_words)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, index: int, happening: Happening) -> None:
        state = self._states[index]
        events: list[Event] = []
        if isinstance(happening, Finished):
            _raise_failure(happening)
            self._ended[index] = happening
        if not isinstance(happening, Delta | CallDelta | Finished):
            if isinstance(happening, Routed):
                state.cached_tokens = happening.cached_tokens
            self._waiting = _KEEPALIVE
            return
        if index not in self._begun:
            self._begun.add(index)
            events += self._dialect.begun(state)
        if isinstance(happening, Finished):
            events += self._dialect.ended(state, happening)
        else:
            state.add(happening)
            events += self._dialect.piece(state, happening)
        self._num_pieces += is_piece(happening)
        if events:
            await self._write(self._id() + b"".join(_bytes(event) for event in events))

    def _id(self) -> bytes:
        """Of the event that follows; streams of several choices have none."""
        order = self._order.orders[0]
        if not order.request_id:
            return b""
        return event_id(order.request_id, self._num_pieces, order.resume)

    async def _write(self, payload: bytes) -> None:
        if not self._has_started:
            self._has_started = True
            headers = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-request-id", self._response_id.encode()),
                (b"x-accel-buffering", b"no"),
            ]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": payload, "more_body": True})


def _tier(slo: SloClass) -> str:
    """OpenAI's word for how a request was served."""
    return "flex" if slo is SloClass.BATCH else "default"


def _waiting_line(queued: Queued) -> bytes:
    """A comment of the event stream: clients that do not know it pass over it."""
    wait = "" if queued.wait_ms is None else f" wait_s={max(1, round(queued.wait_ms / 1e3))}"
    line = f": queued position={queued.position}{wait} reason={queued.reason.code}"
    return line.encode() + b"\n\n"


def _raise_failure(finished: Finished) -> None:
    if finished.reason is FinishReason.ERROR and finished.error is not None:
        raise finished.error
    if finished.reason is FinishReason.CANCELLED:
        raise CancelledByClientError("the generation was cancelled")


def _bytes(event: Event) -> bytes:
    name = f"event: {event.name}\n".encode() if event.name else b""
    return name + b"data: " + json_bytes(event.content) + b"\n\n"


def _bounded(send: Send, limit_s: float) -> Callable[[Message], Awaitable[None]]:
    async def bounded(message: Message) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await send(message)
        except (TimeoutError, OSError) as error:
            raise ClientGoneError from error

    return bounded


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
