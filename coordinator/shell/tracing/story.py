"""What is remembered of a request until its trace is written: when it came, waited, was given a
chain, had its first token and its last one. All times are monotonic ms of the coordinator."""

from dataclasses import dataclass, field
from typing import Final

from coordinator.core import effects as fx
from coordinator.core import events as ev
from plait.types import FinishReason, GuessTotals, Route

ATTEMPTS_MAX: Final = 16
"""Chains told of one request; of more, the first ones."""
ROUTE_BROKEN: Final = "route_broken"
"""A chain that the core gave up, a node of it having gone or become slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """What a request's tokens did not cost: `cached_tokens` of its prompt, and trips round the
    chain by its guesses. None: no token has come."""

    cached_tokens: int | None = None
    guesses: GuessTotals | None = None


@dataclass(slots=True)
class Attempt:
    """One chain. `queued_ms` is since when the request waited for it, `chosen_from_ms` to
    `chosen_ms` how long it took to choose. `is_found`: opened before this process began."""

    epoch: int
    route: Route
    queued_ms: int
    chosen_from_ms: int
    chosen_ms: int
    is_found: bool = False
    opened_ms: int | None = None
    first_token_ms: int | None = None
    over_ms: int | None = None
    num_before: int = 0
    num_after: int = 0
    error: str = ""


@dataclass(slots=True, kw_only=True)
class Story:
    """One request, as it goes."""

    submitted: ev.RequestSubmitted
    began_ms: int
    queued_ms: int
    attempts: list[Attempt] = field(default_factory=list)
    position_max: int = 0
    waits_for: str = ""
    found: ev.RouteFound | None = None
    num_generated: int = 0
    ended_ms: int | None = None
    finish_reason: FinishReason | None = None
    error: str = ""

    def heard(self, event: ev.Event, now_ms: int) -> None:
        """What the core was told of the request."""
        match event:
            case ev.RouteFound(is_running=True):
                self.found = event
            case ev.RouteOpened(epoch=epoch):
                attempt = self._attempt(epoch, now_ms)
                if attempt is not None and attempt.opened_ms is None:
                    attempt.opened_ms = now_ms
            case ev.FirstTokenSent(epoch=epoch):
                attempt = self._attempt(epoch, now_ms)
                if attempt is not None and attempt.first_token_ms is None:
                    attempt.first_token_ms = now_ms
            case ev.LastTokenSent(epoch=epoch, num_generated=num_generated):
                self._over(epoch, now_ms, num_generated)
            case ev.RouteBroke(epoch=epoch, reason=reason, num_generated=num_generated):
                self._over(epoch, now_ms, num_generated, error=reason.code)
                self.queued_ms = now_ms
            case ev.RequestCancelled(num_generated=num_generated):
                self.num_generated = max(self.num_generated, num_generated)
            case _:
                pass

    def told(self, effect: fx.RequestEffect, since_ms: int, now_ms: int) -> None:
        """What the core decided, having thought from `since_ms` to `now_ms`."""
        match effect:
            case fx.NotifyQueued(position=position, reason=reason):
                self.position_max = max(self.position_max, position)
                self.waits_for = reason.code
            case fx.OpenRoute() if len(self.attempts) < ATTEMPTS_MAX:
                attempt = Attempt(effect.epoch, effect.route, self.queued_ms, since_ms, now_ms)
                attempt.num_before = self.num_generated
                self.attempts.append(attempt)
            case fx.CloseRoute(epoch=epoch, finish_reason=why):
                error = ROUTE_BROKEN if why is FinishReason.ERROR else ""
                self._over(epoch, since_ms, self.num_generated, error=error)
                self.queued_ms = since_ms  # another chain may be chosen in the same breath
            case fx.EndRequest():
                self.ended_ms, self.finish_reason = now_ms, effect.finish_reason
                if effect.reason is not None:
                    self.error = effect.reason.code
            case _:
                pass

    def _attempt(self, epoch: int, now_ms: int) -> Attempt | None:
        if self.attempts and self.attempts[-1].epoch == epoch:
            return self.attempts[-1]
        found = self.found
        if found is None or found.epoch != epoch or len(self.attempts) >= ATTEMPTS_MAX:
            return None
        attempt = Attempt(epoch, found.route, self.queued_ms, now_ms, now_ms, is_found=True)
        attempt.opened_ms, attempt.num_before = now_ms, self.submitted.num_generated
        self.attempts.append(attempt)
        return attempt

    def _over(self, epoch: int, now_ms: int, num_generated: int, *, error: str = "") -> None:
        self.num_generated = max(self.num_generated, num_generated)
        attempt = self._attempt(epoch, now_ms)
        if attempt is not None and attempt.over_ms is None:
            attempt.over_ms, attempt.error = now_ms, error
            attempt.num_after = self.num_generated
