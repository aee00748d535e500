"""Who is next: classes with ageing, and inside a class a fair share of tokens to every key.

Virtual token counters after Sheng et al. (OSDI 2024): each key pays for what it is served, prompt
tokens once and new tokens twice; the key that has paid least is next. A key that was idle starts
where the poorest active one stands, so nobody saves up turns. A key of weight w pays 1/w of every
token, so that of keys that wait all the time each is served in proportion to its weight.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

NEW_TOKEN_WEIGHT: Final = 2
KEYS_MAX: Final = 4_096
WEIGHT_MIN: Final = 0.01
WEIGHT_MAX: Final = 100.0


class SloClass(StrEnum):
    """What a request is for: somebody who watches, or work that can wait."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One that waits. `is_resumed`: it was served before its chain broke, and goes first."""

    key_id: str
    slo: SloClass
    waited_ms: int
    tokens: int
    is_resumed: bool = False


class VirtualCounters:
    """Tokens paid by key. Bounded: keys beyond KEYS_MAX are forgotten, the poorest first."""

    def __init__(self) -> None:
        self._paid: dict[str, float] = {}
        self._weights: OrderedDict[str, float] = OrderedDict()

    def weigh(self, key_id: str, weight: float) -> None:
        """What is paid from now on counts 1/weight; a weight that is none is as 1. Of keys beyond
        KEYS_MAX those told of longest ago are as 1 again."""
        self._weights.pop(key_id, None)
        if weight != 1.0 and WEIGHT_MIN <= weight <= WEIGHT_MAX:
            self._weights[key_id] = weight
        while len(self._weights) > KEYS_MAX:
            self._weights.popitem(last=False)

    def weight(self, key_id: str) -> float:
        """A key's weight, 1 where none was told."""
        return self._weights.get(key_id, 1.0)

    def paid(self, key_id: str) -> float:
        """What a key has paid so far, in tokens of a key of weight 1."""
        return self._paid.get(key_id, 0.0)

    def charge(self, key_id: str, tokens: float, *, weight: float | None = None) -> None:
        """Pay for `tokens`, or get some back where they are negative; by the key's weight, or by
        the `weight` that it had."""
        share = self.weight(key_id) if weight is None else weight
        self._paid[key_id] = self._paid.get(key_id, 0.0) + tokens / share
        if len(self._paid) > KEYS_MAX:
            del self._paid[min(self._paid, key=lambda key: (self._paid[key], key))]

    def lift(self, key_id: str, active: Collection[str]) -> None:
        """`key_id` becomes active: it starts no poorer than the poorest of `active`."""
        floor = min((self.paid(key) for key in active if key != key_id), default=0.0)
        self._paid[key_id] = max(self.paid(key_id), floor)


def cost_tokens(prompt_tokens: int, new_tokens: int) -> int:
    """What serving a request costs its key."""
    return prompt_tokens + NEW_TOKEN_WEIGHT * new_tokens


def fair_order(
    waiting: Sequence[Waiting], counters: VirtualCounters, *, ageing_ms: int
) -> list[int]:
    """Places in `waiting` (in order of arrival), who is next first.

    Resumed ones, then interactive ones and batch ones that waited `ageing_ms`, then the rest;
    inside each the poorest key's oldest, as if each had been served and paid.
    """
    tiers: tuple[list[int], list[int], list[int]] = ([], [], [])
    for place, one in enumerate(waiting):
        is_urgent = one.slo is SloClass.INTERACTIVE or one.waited_ms >= ageing_ms
        tiers[0 if one.is_resumed else 1 if is_urgent else 2].append(place)
    paid: dict[str, float] = {}
    order = list(tiers[0])
    for tier in tiers[1:]:
        lanes: dict[str, list[int]] = {}
        for place in reversed(tier):
            lanes.setdefault(waiting[place].key_id, []).append(place)
        while lanes:
            key_id = min(lanes, key=lambda key: (_paid(paid, counters, key), lanes[key][-1]))
            place = lanes[key_id].pop()
            order.append(place)
            cost = waiting[place].tokens / counters.weight(key_id)
            paid[key_id] = _paid(paid, counters, key_id) + cost
            if not lanes[key_id]:
                del lanes[key_id]
    return order


def _paid(paid: dict[str, float], counters: VirtualCounters, key_id: str) -> float:
    known = paid.get(key_id)
    return known if known is not None else counters.paid(key_id)
