"""One generation: its prompt, every token it has seen, and what its readers are told.

All methods are synchronous and run on the event loop. The history is bounded by the request's own
token limit, so a reader may be slow or come late without anything growing.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from coordinator.gateway.detokenize import Scanned, StopScanner, Utf8Stream
from coordinator.gateway.happenings import (
    Accepted,
    CallDelta,
    Delta,
    Finished,
    GeneratedToken,
    Happening,
    Queued,
    Routed,
)
from coordinator.gateway.tokens import Tokenizer
from coordinator.gateway.tool_calls import CallScanner, TextPiece
from plait.clock import Clock
from plait.errors import PlaitError
from plait.types import FinishReason, ModelId, Reason, RequestId, Route, SamplingParams
from plait.wire.trace_context import TraceParent
from scheduler.selection.fairness import SloClass

NOTICES_MAX: Final = 64
"""Queue and route notices kept per generation; later ones are not told."""
QUEUE_NOTICES_MAX: Final = 48
"""Of those, notices of waiting: a long queue leaves room for routes."""


class Generation:
    """The state of one request, from submission to its last token."""

    def __init__(
        self,
        *,
        request_id: RequestId,
        model_id: ModelId,
        key_id: str,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        sampling: SamplingParams,
        stop: Sequence[str],
        stop_token_ids: Sequence[int],
        vocab_size: int,
        tokenizer: Tokenizer,
        clock: Clock,
        slo: SloClass = SloClass.INTERACTIVE,
        calls: CallScanner | None = None,
        shown: Mapping[int, bytes] | None = None,
        fingerprint: bytes = b"",
        trace: TraceParent | None = None,
        on_finished: Callable[[ModelId, Finished], None] = lambda *_: None,
        draft_tokens: int | None = None,
    ) -> None:
        """`calls` finds function calls in the text; `shown` are the bytes of special tokens that it
        has to see. `on_finished` is called once."""
        self.request_id: Final = request_id
        self.model_id: Final = model_id
        self.key_id: Final = key_id
        self.slo: Final = slo
        self.fingerprint: Final = fingerprint
        self.trace: Final = trace
        self.draft_tokens: Final = draft_tokens
        self.prompt_ids: Final = tuple(prompt_ids)
        self.max_new_tokens: Final = max_new_tokens
        self.sampling: Final = sampling
        self.stop: Final = tuple(stop)
        self.stop_token_ids: Final = tuple(stop_token_ids)
        self.vocab_size: Final = vocab_size
        self.tokenizer: Final = tokenizer
        self.generated_ids: list[int] = []
        self.cached_tokens = 0
        """Of the prompt, that the chain had from earlier requests: the chain that drew the first
        token, for what later ones read again is not the request's doing."""
        self.is_prompt_read = False
        """Whether a chain has brought a token."""
        self.admission = 0
        """When it was first given a chain, in order; 0: not yet."""
        self.finished: Finished | None = None
        self.finished_ms: int | None = None
        self.history: list[Happening] = []
        self._clock = clock
        self.submitted_ms: Final = clock.monotonic_ms()
        self._first_token_ms: int | None = None
        self._num_attempts = 0
        self._num_notices = 0
        self._num_queued = 0
        self._utf8 = Utf8Stream()
        self._scanner = StopScanner(stop)
        self._calls = calls
        self._on_finished = on_finished
        self._shown: Mapping[int, bytes] = shown if shown is not None else {}
        self._fed_chars = 0
        self._released_chars = 0
        self._unreleased: list[GeneratedToken] = []
        self._wakers: set[asyncio.Event] = set()

    # What the relay tells.

    def on_accepted(self, epoch: int = 0) -> None:
        """The core knows the request. `epoch` is what to come back with."""
        self._tell(
            Accepted(
                request_id=self.request_id,
                model_id=self.model_id,
                prompt_tokens=len(self.prompt_ids),
                slo=self.slo,
                epoch=epoch,
            )
        )

    def go_on_behind(self, token_ids: Sequence[int]) -> None:
        """Take the tokens that the client has already: what follows is as if nothing had been.

        A generation that they end is finished afterwards, and was never submitted.
        """
        for token_id in token_ids:
            is_stop = token_id in self.stop_token_ids
            self.on_token(GeneratedToken(token_id=token_id, is_stop=is_stop), None)

    def on_queued(self, position: int, reason: Reason, wait_ms: int | None = None) -> None:
        """The request waits."""
        if self._num_queued < QUEUE_NOTICES_MAX:
            self._num_queued += 1
            self._notice(Queued(position=position, reason=reason, wait_ms=wait_ms))

    def on_routed(self, epoch: int, route: Route, cached_tokens: int = 0) -> None:
        """A chain has opened for it, that had `cached_tokens` of its tokens so far."""
        self._num_attempts += 1
        if not self.is_prompt_read:
            self.cached_tokens = min(cached_tokens, len(self.prompt_ids))
        self._notice(Routed(epoch=epoch, route=route, cached_tokens=self.cached_tokens))

    def on_token(
        self, token: GeneratedToken, finish_reason: FinishReason | None
    ) -> FinishReason | None:
        """Take the next token. Returns why the generation is over, or None while it goes on.

        `finish_reason` is the last stage's opinion; stop strings and the token limit are ours.
        """
        if self.finished is not None:
            return self.finished.reason
        if self._first_token_ms is None:
            self._first_token_ms = self._clock.monotonic_ms()
        self.is_prompt_read = self._num_attempts > 0
        self.generated_ids.append(token.token_id)
        piece = b"" if token.is_stop else self._bytes_of(token.token_id)
        self._unreleased.append(replace(token, text_at=self._fed_chars))
        reason = FinishReason.STOP if token.is_stop else finish_reason
        if reason is None and len(self.generated_ids) >= self.max_new_tokens:
            reason = FinishReason.LENGTH
        scanned = self._feed(self._utf8.feed(piece))
        if not scanned.is_stopped and reason is not None:
            rest = self._feed(self._utf8.flush())
            scanned = Scanned(scanned.text + rest.text, rest.stop)
        if scanned.is_stopped:
            reason = FinishReason.STOP
        self._release(scanned, is_last=reason is not None)
        if reason is None and self._calls is not None and self._calls.is_over:
            reason = FinishReason.STOP  # the one call that was allowed
        if reason is not None:
            has_calls = self._calls is not None and self._calls.num_calls > 0
            is_call = has_calls and reason is FinishReason.STOP
            self._finish(FinishReason.TOOL_CALLS if is_call else reason, None, stop=scanned.stop)
        return reason

    def on_ended(self, reason: FinishReason, error: PlaitError | None) -> None:
        """The request is over for another reason than a token."""
        if self.finished is None:
            self._finish(reason, error)

    # What readers use.

    def watch(self, waker: asyncio.Event) -> None:
        """Set `waker` whenever the history grows."""
        self._wakers.add(waker)

    def unwatch(self, waker: asyncio.Event) -> None:
        """Stop waking `waker`."""
        self._wakers.discard(waker)

    # Helpers.

    def _feed(self, text: str) -> Scanned:
        self._fed_chars += len(text)
        return self._scanner.feed(text)

    def _release(self, scanned: Scanned, *, is_last: bool) -> None:
        """Give out `scanned.text` and the tokens that began before its end."""
        text = scanned.text
        if scanned.is_stopped:
            # Tokens that begin inside the stop string stay untold; those before it are out or go.
            end = self._released_chars + len(text)
            ready = [token for token in self._unreleased if token.text_at < end]
            self._unreleased.clear()
        else:
            if is_last:
                text += self._scanner.flush()
            held_from = self._fed_chars - len(self._scanner.held)
            is_free = not self._scanner.held
            ready = [t for t in self._unreleased if is_free or t.text_at < held_from]
            del self._unreleased[: len(ready)]
        self._released_chars += len(text)
        if self._calls is None:
            if text or ready:
                self._tell(Delta(text=text, tokens=tuple(ready)))
        else:
            self._tell_pieces(self._calls, text, tuple(ready), is_last=is_last)

    def _tell_pieces(
        self, calls: CallScanner, text: str, tokens: tuple[GeneratedToken, ...], *, is_last: bool
    ) -> None:
        """Text and calls, told apart; the tokens go with the first of them."""
        pieces = calls.feed(text) + (calls.flush() if is_last else [])
        if tokens and not (pieces and isinstance(pieces[0], TextPiece)):
            pieces.insert(0, TextPiece(""))
        for piece in pieces:
            if isinstance(piece, TextPiece):
                self._tell(Delta(text=piece.text, tokens=tokens))
                tokens = ()
            else:
                self._tell(
                    CallDelta(
                        index=piece.index,
                        call_id=piece.call_id,
                        name=piece.name,
                        arguments=piece.arguments,
                    )
                )

    def _bytes_of(self, token_id: int) -> bytes:
        return self._shown.get(token_id) or self.tokenizer.token_bytes(token_id)

    def _finish(self, reason: FinishReason, error: PlaitError | None, *, stop: str = "") -> None:
        now_ms = self.finished_ms = self._clock.monotonic_ms()
        first_ms = self._first_token_ms
        self.finished = Finished(
            reason=reason,
            error=error,
            prompt_tokens=len(self.prompt_ids),
            completion_tokens=len(self.generated_ids),
            ttft_ms=None if first_ms is None else first_ms - self.submitted_ms,
            total_ms=now_ms - self.submitted_ms,
            num_attempts=self._num_attempts,
            stop=stop,
            cached_tokens=self.cached_tokens,
        )
        self._tell(self.finished)
        self._on_finished(self.model_id, self.finished)

    def _notice(self, happening: Happening) -> None:
        if self.finished is None and self._num_notices < NOTICES_MAX:
            self._num_notices += 1
            self._tell(happening)

    def _tell(self, happening: Happening) -> None:
        self.history.append(happening)
        for waker in self._wakers:
            waker.set()
