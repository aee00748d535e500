"""How long a simulated node waits for works that are about to come, as nodes do (decisions 0082 and
0121).

Works of one step reach the next stage one by one. Whoever shared a step is waited for, at most half
a step's time; for other open sequences a moment, and now and then a whole round of the ring. A node
with time to spare, whose rows travel for longer than its steps take, waits for nobody and takes one
decode at a time.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

LIMIT_S: Final = 0.015
COMPANION_STEPS: Final = 0.5
ANY_STEPS: Final = 0.03
MERGE_STEPS: Final = 6.0
MERGE_LIMIT_FACTOR: Final = 10.0
MERGE_AFTER_STEPS: Final = 8
MERGE_AFTER_STEPS_MAX: Final = 1024
ROOMY_LOAD: Final = 0.7
"""Time to spare: steps of one sequence each would fill less of what passed."""
LOAD_STEPS: Final = 24
"""Steps over which that is taken; half of them must be known."""
KEPT: Final = 0.9
"""Share of the old value when a step's time is averaged."""


@dataclass(slots=True, eq=False)
class Patience:
    """One node's. Requests are known by their numbers; more than `group_max` of them wait for
    nobody."""

    group_max: int
    _step_s: float = 0.0
    _num_steps: int = 0
    _merge_after: int = MERGE_AFTER_STEPS
    _merge_at: int = MERGE_AFTER_STEPS
    _groups: dict[int, set[int]] = field(default_factory=dict)
    _phase: int = 0
    _until_s: float = 0.0
    _is_merging: bool = False
    _travel_s: float = 0.0
    _steps: deque[tuple[float, int, float]] = field(
        default_factory=lambda: deque(maxlen=LOAD_STEPS)
    )

    @property
    def is_roomy(self) -> bool:
        """Whether steps of one sequence each would leave time to spare, and take less of it than
        rows travel to the node and on from it."""
        steps = list(self._steps)
        if len(steps) < LOAD_STEPS // 2:
            return False
        passed_s = steps[-1][0] - steps.pop(0)[0]
        alone_s = sum(num_sequences * took_s for _, num_sequences, took_s in steps)
        busy_s = sum(took_s for _, _, took_s in steps)
        return alone_s < ROOMY_LOAD * passed_s and busy_s < self._travel_s * len(steps)

    def opened(self, travel_s: float, num_open: int) -> None:
        """Somebody new, one of `num_open`, whose rows travel for so long here and on: merging is
        tried again after its first steps. Whoever comes to an empty node begins the count anew."""
        self._travel_s = travel_s
        if num_open <= 1:
            self._steps.clear()
        self._merge_after = MERGE_AFTER_STEPS
        self._merge_at = self._num_steps + MERGE_AFTER_STEPS

    def closed(self, number: int) -> None:
        """A sequence is over."""
        self._leave(number)

    def waits_until(self, now_s: float, ready: set[int], num_open: int) -> float | None:
        """When to look again, with `ready` requests here and `num_open` open; None: start."""
        if self.is_roomy:
            self._phase, self._is_merging = 0, False
            return None
        if self._phase == 0:
            self._begin(1, now_s + min(COMPANION_STEPS * self._step_s, LIMIT_S))
        if self._phase == 1:
            if self._expects_companions(ready) and now_s < self._until_s:
                return self._until_s
            self._begin(2, now_s + self._moment_s(ready, num_open))
        if len(ready) < num_open and now_s < self._until_s:
            return self._until_s
        if self._is_merging:
            if len(ready) < num_open:
                self._merge_after = min(2 * self._merge_after, MERGE_AFTER_STEPS_MAX)
            self._merge_at = self._num_steps + self._merge_after
        self._phase, self._is_merging = 0, False
        return None

    def started(self, numbers: Iterable[int]) -> None:
        """These share a step."""
        group = set(numbers)
        for number in group:
            self._leave(number)
            self._groups[number] = group

    def ended(self, num_sequences: int, took_s: float, now_s: float) -> None:
        """A step of so many sequences is over."""
        self._steps.append((now_s, num_sequences, took_s))
        kept = KEPT if self._num_steps else 0.0
        self._step_s = kept * self._step_s + (1.0 - kept) * took_s
        self._num_steps += 1

    def _begin(self, phase: int, until_s: float) -> None:
        self._phase, self._until_s = phase, until_s

    def _moment_s(self, ready: set[int], num_open: int) -> float:
        if num_open > self.group_max or self._num_steps < self._merge_at:
            return min(ANY_STEPS * self._step_s, LIMIT_S)
        self._is_merging = len(ready) < num_open
        return min(MERGE_STEPS * self._step_s, MERGE_LIMIT_FACTOR * LIMIT_S)

    def _expects_companions(self, ready: set[int]) -> bool:
        groups = (self._groups.get(number) for number in ready)
        return any(g is not None and len(g) <= self.group_max and not g <= ready for g in groups)

    def _leave(self, number: int) -> None:
        group = self._groups.pop(number, None)
        if group is not None:
            group.discard(number)
