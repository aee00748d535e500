"""What each model is asked for: as the operator says, else as it is observed."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from plait.types import ModelId
from scheduler.allocation.demand import shares

MEMORY_MS: Final = 600_000.0
"""What was asked this long ago counts 1/e."""
PRIOR_TOKENS: Final = 5_000.0
"""Every model counts as if it was asked for so many of late: none is given up for a quiet hour."""
DEPARTURE: Final = 1.5


class Demand:
    """`given` are the operator's weights (None: follow what is observed), `replicas_min` the chains
    that a model is to have before any has more."""

    def __init__(
        self,
        models: Iterable[ModelId],
        given: Mapping[ModelId, float] | None = None,
        replicas_min: Mapping[ModelId, int] | None = None,
    ) -> None:
        self.models = tuple(models)
        self.given = dict(given) if given else None
        self.replicas_min = dict(replicas_min) if replicas_min else {}
        self._tokens = dict.fromkeys(self.models, 0.0)
        self._at_ms = 0
        self._planned = shares(self.models, self.given or {})
        self._departed_ms: int | None = None

    def ask(self, model_id: ModelId, tokens: float, now_ms: int) -> None:
        """A request came."""
        self._fade(now_ms)
        self._tokens[model_id] += tokens

    def shares(self) -> dict[ModelId, float]:
        """Each model's part, all together 1."""
        if self.given is not None:
            return shares(self.models, self.given)
        return shares(self.models, {m: t + PRIOR_TOKENS for m, t in self._tokens.items()})

    def is_departed(self, now_ms: int, *, patience_ms: int) -> bool:
        """Whether the parts have been far from those that plans were made with for so long."""
        now = self.shares()
        if all(max(now[m] / p, p / now[m]) < DEPARTURE for m, p in self._planned.items()):
            self._departed_ms = None
            return False
        if self._departed_ms is None:
            self._departed_ms = now_ms
        return now_ms - self._departed_ms >= patience_ms

    def plan(self) -> dict[ModelId, float]:
        """The parts for a plan that is made now; departures count from here."""
        self._planned, self._departed_ms = self.shares(), None
        return dict(self._planned)

    def _fade(self, now_ms: int) -> None:
        kept = math.exp(-max(0, now_ms - self._at_ms) / MEMORY_MS)
        self._at_ms = max(self._at_ms, now_ms)
        for model_id in self._tokens:
            self._tokens[model_id] *= kept
