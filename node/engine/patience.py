"""How long a step waits for works that are about to come.

A decode step takes about as long for a few rows as for one, so few requests should share their
steps. Works of one step come back one by one; who starts with the first runs it alone, the others
after it, and so on for ever. So a step waits: half a step's time for sequences that shared the last
one, a moment for any other open sequence, and now and then long enough for a whole round of the
ring, so that groups that never meet become one. What fails is tried less and less often.

All that holds where a stage is short of time. Where it is not, since rows travel for longer than a
step takes, a shared step only makes everybody's trip longer: nobody is waited for, and those who
come together go one by one, until they come apart. Time to spare alone does not say so: stages that
share a processor have some too, and none of them has any to give away.
"""

from collections import deque
from collections.abc import Callable, Iterator

from node.engine.batcher import Batcher

Wait = tuple[Callable[[], bool], float]
"""Wait while the first says True, at most so many seconds."""

_COMPANION_STEPS = 0.5
_ANY_STEPS = 0.03
_MERGE_STEPS = 6.0
"""Longest waits as multiples of a step's time."""

_ROOMY_LOAD = 0.7
"""A stage has time to spare where steps of one sequence each would fill less of it."""

_LOAD_STEPS = 24
"""Steps over which the load is taken, and of which half must be known."""

_MERGE_LIMIT_FACTOR = 10.0
_FIRST_MERGE_AFTER_STEPS = 8
_MERGE_AFTER_STEPS_MAX = 1024


class Patience:
    """Decides the waits before a step. `limit_ms` bounds each; merging may take ten times that."""

    def __init__(self, batcher: Batcher, *, group_max: int, limit_ms: float) -> None:
        self._batcher = batcher
        self._group_max = group_max
        self._limit_ms = limit_ms
        self._merge_after_steps = _FIRST_MERGE_AFTER_STEPS
        self._merge_at_step = _FIRST_MERGE_AFTER_STEPS
        self._steps: deque[tuple[float, int, float]] = deque(maxlen=_LOAD_STEPS)
        self._travel_ms = 0.0

    @property
    def is_roomy(self) -> bool:
        """Whether rows travel for longer than a step takes, and steps of one sequence each would
        leave the stage with time to spare."""
        steps = list(self._steps)
        if len(steps) < _LOAD_STEPS // 2:
            return False
        passed_ms = steps[-1][0] - steps.pop(0)[0]
        alone_ms = sum(num_sequences * step_ms for _, num_sequences, step_ms in steps)
        busy_ms = sum(step_ms for _, _, step_ms in steps)
        return alone_ms < _ROOMY_LOAD * passed_ms and busy_ms < self._travel_ms * len(steps)

    @property
    def decodes_max(self) -> int | None:
        """Decodes that the next step should take at most; None: all that wait."""
        return 1 if self._batcher.num_sequences > 1 and self.is_roomy else None

    def stepped(self, num_sequences: int, step_ms: float, end_ms: float) -> None:
        """A step of so many sequences is over."""
        self._steps.append((end_ms, num_sequences, step_ms))

    def sequence_opened(self, step: int, travel_ms: float = 0.0) -> None:
        """Somebody new, whose rows travel for `travel_ms` here and on: after its first steps it is
        worth while to try merging again."""
        self._travel_ms = travel_ms
        if self._batcher.num_sequences <= 1:  # what went on before a pause says nothing
            self._steps.clear()
        self._merge_after_steps = _FIRST_MERGE_AFTER_STEPS
        self._merge_at_step = step + _FIRST_MERGE_AFTER_STEPS

    def waits(self, stage_ms: float, step: int) -> Iterator[Wait]:
        """The waits before a step, one after the other; `stage_ms` is what steps take."""
        batcher = self._batcher
        if batcher.num_sequences <= 1 or self.is_roomy:
            return  # of the only one open, all is here
        yield batcher.expects_companions, self._bounded_s(_COMPANION_STEPS * stage_ms, 1.0)
        if batcher.num_sequences > self._group_max or step < self._merge_at_step:
            yield batcher.expects_more, self._bounded_s(_ANY_STEPS * stage_ms, 1.0)
        elif batcher.expects_more():
            limit = self._bounded_s(_MERGE_STEPS * stage_ms, _MERGE_LIMIT_FACTOR)
            yield batcher.expects_more, limit
            if batcher.expects_more():
                self._merge_after_steps = min(2 * self._merge_after_steps, _MERGE_AFTER_STEPS_MAX)
            self._merge_at_step = step + self._merge_after_steps

    def _bounded_s(self, wait_ms: float, limit_factor: float) -> float:
        return min(wait_ms, limit_factor * self._limit_ms) / 1e3
