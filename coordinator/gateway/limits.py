"""How much one client may have open at once."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from plait.errors import OverloadedError


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorLimits:
    """Bounds of the clients' doors. `head_s` and `body_s` are how long a request's head and body
    may take; `stall_s` how long a client may not read; `headers_hold_s` how long a stream's status
    line waits for the first token, so that a failure is a status. `per_key_max` and
    `per_address_max` count open generations."""

    body_bytes_max: int = 8 * 1024 * 1024
    head_s: float = 10.0
    body_s: float = 20.0
    stall_s: float = 30.0
    headers_hold_s: float = 5.0
    keepalive_s: float = 10.0
    connections_per_address_max: int = 256
    per_key_max: int = 64
    per_address_max: int = 128


class Turnstile:
    """Counts open generations per key and per address."""

    def __init__(self, limits: DoorLimits) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()

    @contextlib.contextmanager
    def enter(self, *, key_id: str, address: str, num: int) -> Iterator[None]:
        """Hold `num` places while the block runs. Raises OverloadedError where there are none."""
        bounds = (
            (f"key {key_id}", self._limits.per_key_max),
            (f"address {address}", self._limits.per_address_max),
        )
        for name, limit in bounds:
            if self._open[name] + num > limit:
                raise OverloadedError(
                    f"{self._open[name]} generations are open for this {name.split()[0]}, at most "
                    f"{limit} may be; wait for one to end",
                    reason="too_many_requests",
                )
        for name, _ in bounds:
            self._open[name] += num
        try:
            yield
        finally:
            for name, _ in bounds:
                self._open[name] -= num
                if not self._open[name]:
                    del self._open[name]
