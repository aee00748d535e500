"""How much of prompts chains had from earlier requests, by request and by model."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from coordinator.gateway.generation import Generation

REQUESTS_MAX: Final = 2_048
"""Requests whose counts are remembered, the latest ones; views show fewer."""


class PromptTotals(NamedTuple):
    """Tokens of prompts, and of these the ones that were not run."""

    tokens: int = 0
    cached_tokens: int = 0


class PromptBook:
    """Counts of this process. One event loop owns it."""

    def __init__(self, requests_max: int = REQUESTS_MAX) -> None:
        self._requests_max = requests_max
        self._requests: dict[str, int] = {}
        self._models: dict[str, PromptTotals] = {}

    def note(self, generation: Generation) -> None:
        """A token is about to be taken: with a request's first one its prompt has been read."""
        if generation.is_prompt_read:
            return
        cached_tokens = generation.cached_tokens
        self._requests[generation.request_id] = cached_tokens
        if len(self._requests) > self._requests_max:
            del self._requests[next(iter(self._requests))]
        known = self._models.get(generation.model_id, PromptTotals())
        self._models[generation.model_id] = PromptTotals(
            known.tokens + len(generation.prompt_ids), known.cached_tokens + cached_tokens
        )

    @property
    def requests(self) -> Mapping[str, int]:
        """Cached tokens by request id."""
        return self._requests

    @property
    def models(self) -> Mapping[str, PromptTotals]:
        """By model id."""
        return self._models
