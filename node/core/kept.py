"""What a last stage keeps of its routes, so that a gateway that restarted can go on with them.

Tokens of a route stay until the gateway says that it is done with it, or for a while after its end.
Bounded: where too many tokens or routes are kept, the oldest ended ones go first, then the oldest.
"""

from collections.abc import Iterator
from typing import Final

from node.core.messages import KeptRoute, StageOpen, Token
from plait.types import RequestId

KEEP_MS: Final = 90_000
TOKENS_MAX: Final = 262_144
ROUTES_MAX: Final = 2_048
PIECE_TOKENS: Final = 512
"""Tokens in one message to the gateway."""


class _Kept:
    __slots__ = (
        "cached_tokens",
        "ended_ms",
        "epoch",
        "is_running",
        "position",
        "ticket",
        "tokens",
    )

    def __init__(self, opened: StageOpen, cached_tokens: int) -> None:
        self.ticket = opened.ticket
        self.epoch = opened.epoch
        self.position = opened.prompt_tokens
        self.cached_tokens = cached_tokens
        self.tokens: list[Token] = []
        self.is_running = True
        self.ended_ms: int | None = None


class KeptRoutes:
    """Routes that end here, by request. A newer epoch replaces an older one."""

    def __init__(self, *, tokens_max: int = TOKENS_MAX, routes_max: int = ROUTES_MAX) -> None:
        self._routes: dict[RequestId, _Kept] = {}
        self._num_tokens = 0
        self._tokens_max = tokens_max
        self._routes_max = routes_max

    def __len__(self) -> int:
        return len(self._routes)

    def opened(self, opened: StageOpen, cached_tokens: int = 0) -> None:
        """A route begins whose last stage this is."""
        self.forget(opened.request_id, opened.epoch)
        self._routes[opened.request_id] = _Kept(opened, cached_tokens)
        self._make_room()

    def drew(self, token: Token) -> None:
        """Keep a token of a route."""
        kept = self._routes.get(token.request_id)
        if kept is not None and kept.epoch == token.epoch:
            kept.tokens.append(token)
            self._num_tokens += 1
            self._make_room()

    def ended(self, request_id: RequestId, epoch: int) -> None:
        """The route is over; the gateway may not know yet."""
        kept = self._routes.get(request_id)
        if kept is not None and kept.epoch <= epoch:
            kept.is_running = False

    def forget(self, request_id: RequestId, epoch: int) -> None:
        """The gateway is done with this epoch."""
        kept = self._routes.get(request_id)
        if kept is not None and kept.epoch <= epoch:
            self._drop(request_id)

    def sweep(self, now_ms: int) -> None:
        """Drop what ended long ago; call it now and then."""
        for request_id, kept in list(self._routes.items()):
            if kept.is_running:
                continue
            if kept.ended_ms is None:
                kept.ended_ms = now_ms
            elif now_ms - kept.ended_ms >= KEEP_MS:
                self._drop(request_id)

    def messages(self) -> Iterator[KeptRoute]:
        """Everything, for a gateway link that has just come up."""
        for request_id, kept in self._routes.items():
            num_tokens = len(kept.tokens)
            for at in range(0, max(1, num_tokens), PIECE_TOKENS):
                is_last = at + PIECE_TOKENS >= num_tokens
                yield KeptRoute(
                    request_id=request_id,
                    ticket=kept.ticket,
                    position=kept.position + at,
                    tokens=tuple(kept.tokens[at : at + PIECE_TOKENS]),
                    is_running=kept.is_running or not is_last,
                    cached_tokens=kept.cached_tokens,
                )

    def _make_room(self) -> None:
        while self._num_tokens > self._tokens_max or len(self._routes) > self._routes_max:
            ended = (r for r, kept in self._routes.items() if not kept.is_running)
            self._drop(next(ended, next(iter(self._routes))))

    def _drop(self, request_id: RequestId) -> None:
        self._num_tokens -= len(self._routes.pop(request_id).tokens)
