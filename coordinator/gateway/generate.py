"""From an order to a stream of happenings, and back out when the client leaves."""

import asyncio
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.core import events as ev
from coordinator.gateway.catalogue import Catalogue
from coordinator.gateway.constraint_check import ConstraintCheck
from coordinator.gateway.conversation import conversation_chars
from coordinator.gateway.generation import Generation
from coordinator.gateway.happenings import Finished
from coordinator.gateway.holding import calls_of, constraint_of
from coordinator.gateway.order import (
    Conversation,
    Order,
    PromptIds,
    RawPrompt,
    check_order,
    drafts_of,
)
from coordinator.gateway.prefixes import block_hashes
from coordinator.gateway.quotas import Charge, Quotas, check_model
from coordinator.gateway.reader import Reader, Resume
from coordinator.gateway.relay import Relay
from coordinator.gateway.resuming import check_resume, seed_of, told_ids
from coordinator.gateway.room import max_new_tokens
from coordinator.gateway.tokens import Tokenizer, TokenizerRegistry
from coordinator.ports import UNLIMITED, Inbox, KeyLimits
from plait.clock import Clock
from plait.errors import DeadlineError, InvalidRequestError, OverloadedError, UnavailableError
from plait.prefixes import cache_salt
from plait.types import Constraint, FinishReason, ModelId, ModelSpec, RequestId


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
        self._network_id = network_id
        self._constraints = constraints if constraints is not None else ConstraintCheck()
        self._quotas = Quotas(clock)
        self.limits: Final = limits if limits is not None else GenerateLimits()
        self.finished_hooks: list[Callable[[ModelId, Finished], None]] = []
        """Called as each generation ends; they must not raise."""

        self._kept: dict[RequestId, _Kept] = {}
        self._is_stopping = False

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
        limits: KeyLimits = UNLIMITED,
        prompt_ids: Sequence[int] | None = None,
        waker: asyncio.Event | None = None,
    ) -> Reader:
        """Validate, tokenise and submit; or attach to the same request that runs already.

        Args:
            limits: of the key.
            prompt_ids: from `encode`, for several choices of one prompt; None: encode here.
            waker: set whenever the reader has something new; readers may share one.

        Raises InvalidRequestError, ModelError, or OverloadedError when there is no room, or the
        key has used what it may.
        """
        check_order(order)
        spec = self._catalogue.find(order.model_id)
        check_model(key_id, limits, spec.model_id)
        if self._is_stopping:
            raise _stopping()
        fingerprint = _fingerprint(order, key_id)
        running = self._attach(order, fingerprint, waker)
        if running is not None:
            return running
        tokenizer = self._tokenizers.get(spec.model_id)
        constraint = await self._constraint(order, spec, tokenizer)
        if prompt_ids is None:
            prompt_ids = await self._encode(order, spec)
        max_answer = max_new_tokens(
            order, spec, len(prompt_ids), default=self.limits.default_max_tokens
        )
        running = self._attach(order, fingerprint, waker)  # it may have come meanwhile
        if running is not None:
            return running
        known_ids = self._known_ids(order)
        check_resume(known_ids, spec.vocab_size, max_answer)
        self._sweep()
        if self.num_running >= self.limits.generations_max:
            raise OverloadedError(
                f"{self.num_running} generations run here already; try again in a second",
                reason="queue_full",
            )
        num_tokens, is_owed = len(prompt_ids) + max_answer, order.resume is not None
        charge = self._quotas.charge(key_id, limits, num_tokens, is_owed=is_owed)
        generation = self._generation(
            order,
            spec,
            tokenizer,
            key_id=key_id,
            prompt_ids=prompt_ids,
            max_new_tokens=max_answer,
            constraint=constraint,
            fingerprint=fingerprint,
            charge=charge,
        )
        try:
            self._submit(generation, order.resume, known_ids)
        except OverloadedError:
            charge.settle(0)
            raise
        kept = _Kept(generation, fingerprint, is_named=bool(order.request_id))
        self._kept[generation.request_id] = kept
        return self._read(kept, waker, order.resume)

    def _generation(
        self,
        order: Order,
        spec: ModelSpec,
        tokenizer: Tokenizer,
        *,
        key_id: str,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        constraint: Constraint | None,
        fingerprint: bytes,
        charge: Charge,
    ) -> Generation:
        request_id = RequestId(order.request_id or self._new_id())
        seed = seed_of(request_id, self._network_id.encode()) if order.seed is None else order.seed
        return Generation(
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
            draft_tokens=drafts_of(order),
            fingerprint=fingerprint,
            trace=order.trace,
            on_finished=self._ending(charge),
            **calls_of(order, tokenizer.tool_format, request_id),
        )

    def _ending(self, charge: Charge) -> Callable[[ModelId, Finished], None]:
        def ended(model_id: ModelId, finished: Finished) -> None:
            has_run = finished.completion_tokens or finished.reason is not FinishReason.ERROR
            used = finished.prompt_tokens + finished.completion_tokens if has_run else 0
            charge.settle(used)
            for hear in self.finished_hooks:
                hear(model_id, finished)

        return ended

    @property
    def silence_s(self) -> float:
        return self.limits.silence_s

    def stop(self) -> None:
        """Tell every client that this process ends, and leave what nodes run alone: a client that
        comes back to the next one goes on where it was."""
        self._is_stopping = True
        for kept in self._kept.values():
            kept.generation.on_ended(FinishReason.ERROR, _stopping())

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

    def left(self, generation: Generation) -> None:
        """A reader has left; without one, a generation is cancelled, a finished one forgotten."""
        kept = self._kept.get(generation.request_id)
        if kept is None or kept.generation is not generation:
            return
        kept.num_readers -= 1
        if kept.num_readers > 0:
            return
        self.cancel(generation.request_id)
        if not kept.is_named:
            self._kept.pop(generation.request_id, None)

    def _read(self, kept: _Kept, waker: asyncio.Event | None, resume: Resume | None) -> Reader:
        kept.num_readers += 1
        return Reader(self, kept.generation, waker, resume)

    def _known_ids(self, order: Order) -> tuple[int, ...]:
        """The tokens that a client has which comes back. Its own old generation ended when it
        left, and makes room."""
        if order.resume is None:
            return ()
        old = self._kept.pop(RequestId(order.request_id), None)
        if order.resume.token_ids or old is None:
            return order.resume.token_ids
        return told_ids(old.generation.history, order.resume.num_deltas)

    def _submit(
        self, generation: Generation, resume: Resume | None, known_ids: Sequence[int]
    ) -> None:
        epoch = 0 if resume is None else resume.next_epoch
        if known_ids:
            generation.on_accepted(epoch)
            generation.go_on_behind(known_ids)
        if generation.finished is not None:
            return
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
                    resumes_epoch=None if resume is None else resume.epoch,
                    num_generated=len(known_ids),
                )
            )
        except OverloadedError:
            self._relay.remove(generation.request_id)
            raise
        if not known_ids:
            generation.on_accepted(epoch)
        self._relay.submitted(generation)

    def _attach(
        self, order: Order, fingerprint: bytes, waker: asyncio.Event | None
    ) -> Reader | None:
        """A reader of the same request that runs or ran here already."""
        self._sweep()
        request_id = RequestId(order.request_id)
        kept = self._kept.get(request_id) if request_id else None
        if kept is None:
            return None
        if kept.fingerprint != fingerprint:
            raise InvalidRequestError(
                f"request_id {request_id!r} belongs to another request; use a fresh one",
                param="request_id",
                reason="request_id_in_use",
            )
        ended = kept.generation.finished
        is_cancelled = ended is not None and ended.reason is FinishReason.CANCELLED
        if order.resume is not None and is_cancelled:
            return None  # it ended because its client was gone, which is back
        return self._read(kept, waker, order.resume)

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


def _stopping() -> UnavailableError:
    return UnavailableError(
        "the coordinator stops; ask again in a moment", reason="coordinator_stopping"
    )


def _fingerprint(order: Order, key_id: str) -> bytes:
    order = dataclasses.replace(order, resume=None, trace=None)
    return hashlib.sha256(repr((key_id, order)).encode("utf-8", "surrogatepass")).digest()
