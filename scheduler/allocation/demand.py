"""Models side by side: how much of a plan each is asked for, and what a plan is worth to all."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from plait.types import ModelId

SURPLUS: Final = 0.05
"""What a token/s beyond a model's share is worth, against one that all models have a part in."""


def shares(models: Sequence[ModelId], demand: Mapping[ModelId, float]) -> dict[ModelId, float]:
    """Each model's part of the tokens/s asked, all together 1; equal parts where nothing is said.
    Models that are not named, or with nonsense, count as the least that is."""
    known = {m: d for m in models if math.isfinite(d := demand.get(m, 0.0)) and d > 0.0}
    least = min(known.values(), default=1.0)
    parts = {m: known.get(m, least) for m in models}
    total = sum(parts.values())
    return {m: part / total for m, part in parts.items()}


def fair_score(scores: Mapping[ModelId, float], parts: Mapping[ModelId, float]) -> float:
    """The total rate at which every served model has its part (max-min fairness; Bertsekas and
    Gallager, Data Networks, 6.5.2), and a little for what some have beyond. One model: its score.
    """
    served = {m: score for m, score in scores.items() if score > 0.0}
    if len(parts) < 2 or not served:
        return sum(served.values())
    asked = sum(parts[m] for m in served)
    met = asked * min(score / parts[m] for m, score in served.items())
    return met + SURPLUS * (sum(served.values()) - met)
