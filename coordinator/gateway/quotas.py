"""What a key may ask for in a minute: a token bucket of requests and one of tokens.

A request is charged in advance for its prompt and all that it may generate, and given back what it
did not use. A bucket holds a minute's worth, so that a key which was quiet may burst. Books are in
memory alone: a coordinator that starts anew gives every key a full minute.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from coordinator.ports import KeyLimits
from plait.clock import Clock
from plait.errors import InvalidRequestError, ModelError, OverloadedError

MINUTE_MS: Final = 60_000
KEYS_MAX: Final = 4_096
"""Keys remembered; whoever was forgotten, the one quiet for longest, has a full minute again."""


def may_use(limits: KeyLimits, model_id: str) -> bool:
    """Whether a key may ask this model."""
    return not limits.models or model_id in limits.models


def check_model(key_id: str, limits: KeyLimits, model_id: str) -> None:
    """Raises ModelError (model_not_allowed) with those that the key may ask."""
    if not may_use(limits, model_id):
        raise ModelError(
            f"the key {key_id} may not use {model_id}; it may use {', '.join(limits.models)}",
            reason="model_not_allowed",
        )


class Quotas:
    """Buckets of all keys that have limits. One event loop owns it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()

    def charge(
        self, key_id: str, limits: KeyLimits, num_tokens: int, *, is_owed: bool = False
    ) -> "Charge":
        """Take one request of `num_tokens` from the key. `is_owed`: it was promised before, and
        is charged even where too little is left.

        Raises OverloadedError (rate_limited) with the time until there is enough, and
        InvalidRequestError (over_key_limit) for what never fits.
        """
        wanted = (
            ("requests", limits.requests_per_min, 1),
            ("tokens", limits.tokens_per_min, num_tokens),
        )
        buckets: list[tuple[_Bucket, int]] = []
        for unit, per_min, amount in wanted:
            if per_min is None:
                continue
            bucket = self._bucket(key_id, unit, per_min)
            if not is_owed:
                _check(bucket, key_id, unit, amount)
            buckets.append((bucket, amount))
        for bucket, amount in buckets:
            bucket.level -= amount
        tokens = buckets[-1][0] if limits.tokens_per_min is not None else None
        return Charge(tokens, num_tokens)

    def _bucket(self, key_id: str, unit: str, per_min: int) -> "_Bucket":
        name = (key_id, unit)
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = _Bucket(per_min=per_min, level=per_min, at_ms=self._clock.monotonic_ms())
            self._buckets[name] = bucket
            while len(self._buckets) > KEYS_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        bucket.per_min = per_min
        bucket.fill(self._clock.monotonic_ms())
        return bucket


class Charge:
    """What one request was charged."""

    def __init__(self, bucket: "_Bucket | None", num_tokens: int) -> None:
        self._bucket = bucket
        self._num_tokens = num_tokens

    def settle(self, num_used: int) -> None:
        """The request has ended: give back what it did not use. The first call counts."""
        if self._bucket is not None:
            self._bucket.level += max(0, self._num_tokens - num_used)
            self._bucket = None


@dataclass(slots=True, kw_only=True)
class _Bucket:
    per_min: int
    level: float
    at_ms: int

    def fill(self, now_ms: int) -> None:
        self.level = min(self.per_min, self.level + self._grown(now_ms - self.at_ms))
        self.at_ms = now_ms

    def wait_s(self, amount: int) -> float:
        return (amount - self.level) * MINUTE_MS / self.per_min / 1e3

    def _grown(self, past_ms: int) -> float:
        return self.per_min * past_ms / MINUTE_MS


def _check(bucket: _Bucket, key_id: str, unit: str, amount: int) -> None:
    if amount > bucket.per_min:
        raise InvalidRequestError(
            f"prompt and max_tokens come to {amount} {unit}; the key {key_id} may use "
            f"{bucket.per_min} in a minute: ask for fewer with max_tokens, or for a larger limit",
            param="max_tokens",
            reason="over_key_limit",
        )
    if amount > bucket.level:
        wait_s = bucket.wait_s(amount)
        raise OverloadedError(
            f"the key {key_id} may use {bucket.per_min} {unit} in a minute, {amount} are asked "
            f"for and {max(0, math.floor(bucket.level))} are left: try again in "
            f"{math.ceil(wait_s)} s",
            reason="rate_limited",
            retry_after_s=wait_s,
        )
