"""How many tokens were guessed, by request and by model, as last stages tell with their tokens."""

from collections.abc import Mapping
from typing import Final

from coordinator.gateway.happenings import GeneratedToken
from plait.types import GuessTotals, ModelId, RequestId

REQUESTS_MAX: Final = 2_048
"""Requests whose counts are remembered, the latest ones; views show fewer."""

_NONE: Final = GuessTotals()


class GuessBook:
    """Counts of this process. One event loop owns it."""

    def __init__(self, requests_max: int = REQUESTS_MAX) -> None:
        self._requests_max = requests_max
        self._requests: dict[str, GuessTotals] = {}
        self._models: dict[str, GuessTotals] = {}

    def note(self, request_id: RequestId, model_id: ModelId, token: GeneratedToken) -> None:
        """A token came. Right guesses come one by one before the token that ends their trip."""
        for counts, key in ((self._requests, request_id), (self._models, model_id)):
            known = counts.get(key, _NONE)
            if token.is_guess:
                counts[key] = known.and_right_guess()
            else:
                counts[key] = known.and_trip(guessed=token.num_guesses)
        if len(self._requests) > self._requests_max:
            del self._requests[next(iter(self._requests))]

    @property
    def requests(self) -> Mapping[str, GuessTotals]:
        """By request id."""
        return self._requests

    @property
    def models(self) -> Mapping[str, GuessTotals]:
        """By model id."""
        return self._models
