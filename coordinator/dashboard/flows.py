"""Who feeds whom, and how much: tokens a second over every hop, from what requests have come to."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from coordinator.core.view import RequestView

GATEWAY: Final = ""
"""The coordinator's own end of a chain; no node has this id."""
MEMORY_MS: Final = 15_000.0
"""What passed this long ago counts 1/e."""
LEAST_PER_S: Final = 0.01
HOPS_MAX: Final = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Tokens a second from one node to the next, prompts included."""

    source_id: str
    target_id: str
    tokens_per_s: float


class FlowMeter:
    """Watches requests grow. What was there at the first look is where counting begins."""

    def __init__(self) -> None:
        self._seen: dict[str, int] | None = None
        self._rates: dict[tuple[str, str], float] = {}
        self._noted_ms = 0

    def note(self, requests: Iterable[RequestView], now_ms: int) -> tuple[Flow, ...]:
        """Count what has come since the last time; the rates of now."""
        before, after = self._seen, dict[str, int]()
        self._fade(now_ms)
        for request in requests:
            passed = _passed(request)
            after[request.request_id] = passed
            new = passed - before.get(request.request_id, 0) if before is not None else 0
            if new > 0 and request.route:
                self._add([hop.node_id for hop in request.route], new)
        self._seen = after
        return tuple(
            Flow(source_id=source, target_id=target, tokens_per_s=rate)
            for (source, target), rate in self._rates.items()
        )

    def _fade(self, now_ms: int) -> None:
        kept = math.exp(-max(0, now_ms - self._noted_ms) / MEMORY_MS)
        self._noted_ms = now_ms
        faded = {hop: rate * kept for hop, rate in self._rates.items()}
        self._rates = {hop: rate for hop, rate in faded.items() if rate >= LEAST_PER_S}

    def _add(self, chain: list[str], tokens: int) -> None:
        for hop in zip([GATEWAY, *chain], [*chain, GATEWAY], strict=True):
            if hop in self._rates or len(self._rates) < HOPS_MAX:
                self._rates[hop] = self._rates.get(hop, 0.0) + 1e3 * tokens / MEMORY_MS


def _passed(request: RequestView) -> int:
    """The prompt counts once its first token is there."""
    return request.num_generated + (request.prompt_tokens if request.ttft_ms is not None else 0)
