"""From an order to a stream of happenings, and back out when the client leaves."""

import asyncio
import dataclasses
import hashlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.core import events as ev
from coordinator.gateway.catalogue import Catalogue
from coordinator.gateway.constraint_check import ConstraintCheck
from coordinator.gateway.conversation import conversation_chars
from coordinator.gateway.generation import Generation
from coordinator.gateway.happenings import Happening
from coordinator.gateway.holding import calls_of, constraint_of
from coordinator.gateway.order import (
    SEEDS,
    Conversation,
    Order,
    PromptIds,
    RawPrompt,
    check_order,
)
from coordinator.gateway.prefixes import block_hashes
from coordinator.gateway.relay import Relay
from coordinator.gateway.tokens import Tokenizer, TokenizerRegistry
from coordinator.ports import Inbox
from plait.clock import Clock
from plait.errors import DeadlineError, InvalidRequestError, OverloadedError
from plait.prefixes import cache_salt
from plait.types import Constraint, FinishReason, ModelSpec, RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateLimits:
    """`silence_s` is how long a generation may say nothing; `retain_ms` how long a finished one
    can still be attached to by its id, by at most `retained_max` of them."""

    default_max_tokens: int = 512
    generations_max: int = 1_024
    prompt_chars_max: int = 4 * 1024 * 1024
    silence_s: float = 180.0
    retain_ms: int = 60_000
    retained_max: int = 256


@dataclass(slots=True)
class _Kept:
    generation: Generation
    fingerprint: bytes
    is_named: bool
    num_readers: int = 0


class Generator:
    """Starts generations and hands out readers. One event loop owns it."""

    def __init__(
        self,
        *,
        relay: Relay,
        inbox: Inbox,
        catalogue: Catalogue,
        tokenizers: TokenizerRegistry,
        clock: Clock,
        new_id: Callable[[], str],
        rng: random.Random,
        limits: GenerateLimits | None = None,
        network_id: str = "",
        constraints: ConstraintCheck | None = None,
    ) -> None:
        self._relay = relay
        self._inbox = inbox
        self._catalogue = catalogue
        self._tokenizers = tokenizers
        self._clock = clock
        self._new_id = new_id
        self._rng = rng
        self._network_id = network_id
        self._constraints = constraints if constraints is not None else ConstraintCheck()
        self.limits: Final = limits if limits is not None else GenerateLimits()
        self._kept: dict[RequestId, _Kept] = {}

    @property
    def num_running(self) -> int:
        return sum(kept.generation.finished is None for kept in self._kept.values())

    async def encode(self, order: Order) -> list[int]:
        """The prompt's token ids. Raises InvalidRequestError, ModelError."""
        check_order(order)
        return await self._encode(order, self._catalogue.find(order.model_id))

    async def start(
        self,
        order: Order,
        *,
        key_id: str,
        prompt_ids: Sequence[int] | None = None,
        waker: asyncio.Event | None = None,
    ) -> "Reader":
        """Validate, tokenise and submit; or attach to the same request that runs already.

        Args:
            prompt_ids: from `encode`, for several choices of one prompt; None: encode here.
            waker: set whenever the reader has something new; readers may share one.

        Raises InvalidRequestError, ModelError, or OverloadedError when there is no room.
        """
        check_order(order)
        spec = self._catalogue.find(order.model_id)
        fingerprint = _fingerprint(order, key_id)
        if order.request_id:
            running = self._attach(RequestId(order.request_id), fingerprint, waker)
            if running is not None:
                return running
        tokenizer = self._tokenizers.get(spec.model_id)
        constraint = await self._constraint(order, spec, tokenizer)
        if prompt_ids is None:
            prompt_ids = await self._encode(order, spec)
        max_new_tokens = self._max_new_tokens(order, spec, len(prompt_ids))
        if order.request_id:  # the same id may have come while this one was being encoded
            running = self._attach(RequestId(order.request_id), fingerprint, waker)
            if running is not None:
                return running
        self._sweep()
        if self.num_running >= self.limits.generations_max:
            raise OverloadedError(
                f"{self.num_running} generations run here already; try again in a second",
                reason="queue_full",
            )
        seed = self._rng.randrange(SEEDS) if order.seed is None else order.seed
        request_id = RequestId(order.request_id or self._new_id())
        generation = Generation(
            request_id=request_id,
            model_id=spec.model_id,
            key_id=key_id,
            prompt_ids=prompt_ids,
            max_new_tokens=max_new_tokens,
            sampling=dataclasses.replace(order.sampling, seed=seed, constraint=constraint),
            stop=order.stop,
            stop_token_ids=() if order.ignore_eos else spec.eos_token_ids,
            vocab_size=spec.vocab_size,
            tokenizer=tokenizer,
            clock=self._clock,
            slo=order.slo,
            **calls_of(order, tokenizer.tool_format, request_id),
        )
        self._submit(generation)
        kept = _Kept(generation, fingerprint, is_named=bool(order.request_id))
        self._kept[generation.request_id] = kept
        return Reader(self, kept, waker)

    def cancel(self, request_id: RequestId, error: DeadlineError | None = None) -> None:
        """End a generation on every stage; a finished one stays as it is."""
        kept = self._kept.get(request_id)
        if kept is None or kept.generation.finished is not None:
            return
        if error is None:
            kept.generation.on_ended(FinishReason.CANCELLED, None)
        else:
            kept.generation.on_ended(FinishReason.ERROR, error)
        num_generated = len(kept.generation.generated_ids)
        self._relay.post(ev.RequestCancelled(request_id=request_id, num_generated=num_generated))

    def release(self, kept: _Kept) -> None:
        """A reader has left; without one, a generation is cancelled, a finished one forgotten."""
        kept.num_readers -= 1
        if kept.num_readers > 0:
            return
        request_id = kept.generation.request_id
        self.cancel(request_id)
        if not kept.is_named:
            self._kept.pop(request_id, None)

    def _submit(self, generation: Generation) -> None:
        self._relay.add(generation)
        try:
            self._inbox.post(
                ev.RequestSubmitted(
                    request_id=generation.request_id,
                    model_id=generation.model_id,
                    prompt_tokens=len(generation.prompt_ids),
                    max_new_tokens=generation.max_new_tokens,
                    key_id=generation.key_id,
                    slo=generation.slo,
                    prefix_blocks=block_hashes(
                        generation.prompt_ids, cache_salt(self._network_id, generation.key_id)
                    ),
                )
            )
        except OverloadedError:
            self._relay.remove(generation.request_id)
            raise
        generation.on_accepted()

    def _attach(
        self, request_id: RequestId, fingerprint: bytes, waker: asyncio.Event | None
    ) -> "Reader | None":
        self._sweep()
        kept = self._kept.get(request_id)
        if kept is None:
            return None
        if kept.fingerprint != fingerprint:
            raise InvalidRequestError(
                f"request_id {request_id!r} belongs to another request; use a fresh one",
                param="request_id",
                reason="request_id_in_use",
            )
        return Reader(self, kept, waker)

    def _sweep(self) -> None:
        """Forget named generations that ended longer than `retain_ms` ago, and the oldest ones
        where too many are kept."""
        now_ms = self._clock.monotonic_ms()
        left = [
            (kept.generation.finished_ms, request_id)
            for request_id, kept in self._kept.items()
            if kept.generation.finished_ms is not None and not kept.num_readers
        ]
        num_over = len(left) - self.limits.retained_max
        for at, (ended_ms, request_id) in enumerate(sorted(left)):
            if at < num_over or now_ms - ended_ms >= self.limits.retain_ms:
                del self._kept[request_id]

    async def _encode(self, order: Order, spec: ModelSpec) -> list[int]:
        match order.prompt:
            case PromptIds(ids):
                wrong = next((i for i in ids if not 0 <= i < spec.vocab_size), None)
                if wrong is not None:
                    raise InvalidRequestError(
                        f"token {wrong} is not in the vocabulary of {spec.vocab_size}",
                        param="prompt",
                    )
                return list(ids)
            case RawPrompt(text):
                self._check_size(len(text), "prompt")
                return await self._tokenizers.encode_text(spec.model_id, text)
            case Conversation(turns, tools):
                self._check_size(conversation_chars(turns, tools), "messages")
                return await self._tokenizers.encode_chat(spec.model_id, turns, tools)

    async def _constraint(
        self, order: Order, spec: ModelSpec, tokenizer: Tokenizer
    ) -> Constraint | None:
        """What holds the answer, known to compile."""
        unknown = next((t for t, _ in order.sampling.logit_bias if t >= spec.vocab_size), None)
        if unknown is not None:
            raise InvalidRequestError(
                f"logit_bias names token {unknown}, the vocabulary has {spec.vocab_size}",
                param="logit_bias",
            )
        constraint = await constraint_of(order, tokenizer.tool_format, self._constraints)
        if constraint is not None and not spec.eos_token_ids:
            raise InvalidRequestError(
                f"{spec.model_id} has no end-of-sequence token, so no answer could be held to a "
                "schema",
                param="response_format",
            )
        return constraint

    async def close(self) -> None:
        """End the compiler's process."""
        await self._constraints.close()

    def _check_size(self, size: int, param: str) -> None:
        if size > self.limits.prompt_chars_max:
            raise InvalidRequestError(
                f"{param} holds {size} characters, at most {self.limits.prompt_chars_max} may be "
                "sent",
                param=param,
                reason="context_length_exceeded",
            )

    def _max_new_tokens(self, order: Order, spec: ModelSpec, prompt_tokens: int) -> int:
        param = "messages" if isinstance(order.prompt, Conversation) else "prompt"
        if prompt_tokens == 0:
            raise InvalidRequestError("the prompt has no tokens", param=param)
        room = spec.context_tokens_max - prompt_tokens
        if room < 1:
            raise InvalidRequestError(
                f"the prompt has {prompt_tokens} tokens and leaves no room for an answer: the "
                f"context of {spec.model_id} is {spec.context_tokens_max} tokens",
                param=param,
                reason="context_length_exceeded",
            )
        if order.max_tokens is None:
            return min(self.limits.default_max_tokens, room)
        if order.max_tokens > room:
            raise InvalidRequestError(
                f"max_tokens is {order.max_tokens}, but after a prompt of {prompt_tokens} tokens "
                f"the context of {spec.context_tokens_max} has room for {room}",
                param="max_tokens",
                reason="context_length_exceeded",
            )
        return order.max_tokens


class Reader:
    """One client's view of a generation. Iterate it to the end or close it; closing the last
    reader of a running generation cancels it."""

    def __init__(
        self, generator: Generator, kept: _Kept, waker: asyncio.Event | None = None
    ) -> None:
        self._generator = generator
        self._kept = kept
        self._waker = waker if waker is not None else asyncio.Event()
        self._at = 0
        self._is_closed = False
        kept.num_readers += 1
        kept.generation.watch(self._waker)

    @property
    def generation(self) -> Generation:
        return self._kept.generation

    async def __aenter__(self) -> "Reader":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.generation.unwatch(self._waker)
        self._generator.release(self._kept)

    def __aiter__(self) -> AsyncIterator[Happening]:
        return self

    def poll(self) -> Happening | None:
        """The next happening, or None where there is nothing new."""
        history = self.generation.history
        if self._at >= len(history):
            return None
        self._at += 1
        return history[self._at - 1]

    def give_up(self) -> None:
        """End a generation that has said nothing for too long."""
        error = DeadlineError("the network said nothing for too long; try again", reason="silence")
        self._generator.cancel(self.generation.request_id, error)

    async def __anext__(self) -> Happening:
        """The next happening; `Finished` is always the last one."""
        while (happening := self.poll()) is None:
            if self.generation.finished is not None or self._is_closed:
                raise StopAsyncIteration
            self._waker.clear()
            try:
                async with asyncio.timeout(self._generator.limits.silence_s):
                    await self._waker.wait()
            except TimeoutError:
                self.give_up()
        return happening


def _fingerprint(order: Order, key_id: str) -> bytes:
    return hashlib.sha256(repr((key_id, order)).encode("utf-8", "surrogatepass")).digest()
