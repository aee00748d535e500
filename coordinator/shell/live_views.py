"""The core's view with the gateway's progress laid over it.

The core hears of a request's first and last token only; what streams in between is counted at the
gateway. People want to see it move, so both are joined here, for dashboard, CLI and admin door.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from coordinator.core.view import ModelView, NetworkView, RequestView
from coordinator.ports import ViewSource
from plait.types import GuessTotals

OPEN_STATES: Final = frozenset({"queued", "opening", "prefill", "decode"})
Progress = Callable[[], Mapping[str, int]]
"""Tokens generated so far, by request id, of requests that are open or ended lately."""


class Guesses(Protocol):
    """What was guessed of the tokens that came, by request and by model."""

    @property
    def requests(self) -> Mapping[str, GuessTotals]: ...

    @property
    def models(self) -> Mapping[str, GuessTotals]: ...


class Prompts(Protocol):
    """How many tokens of prompts were there already: by request; by model, after all tokens."""

    @property
    def requests(self) -> Mapping[str, int]: ...

    @property
    def models(self) -> Mapping[str, tuple[int, int]]: ...


class LiveViews:
    """Implements `coordinator.ports.ViewSource`."""

    def __init__(
        self,
        views: ViewSource,
        progress: Progress,
        guesses: Guesses | None = None,
        prompts: Prompts | None = None,
    ) -> None:
        self._views = views
        self._progress = progress
        self._guesses = guesses
        self._prompts = prompts
        self._tokens_shown = 0

    def view(self) -> NetworkView:
        """A snapshot whose token counter never goes back."""
        view, progress = self._views.view(), self._progress()
        requests = tuple(_with_progress(request, progress) for request in view.requests)
        num_open = sum(r.num_generated for r in requests if r.state in OPEN_STATES)
        # A request that has just ended may be gone at the gateway and not yet counted by the core.
        self._tokens_shown = max(self._tokens_shown, view.counters.tokens_generated + num_open)
        counters = replace(view.counters, tokens_generated=self._tokens_shown)
        models = view.models
        if (guesses := self._guesses) is not None:
            requests = tuple(
                replace(each, guesses=guesses.requests.get(each.request_id, each.guesses))
                for each in requests
            )
            models = tuple(
                replace(each, guesses=guesses.models.get(each.model_id, each.guesses))
                for each in models
            )
        if (prompts := self._prompts) is not None:
            requests = tuple(_with_cached(each, prompts) for each in requests)
            models = tuple(_with_prompts(each, prompts) for each in models)
        return replace(view, requests=requests, models=models, counters=counters)


def _with_cached(request: RequestView, prompts: Prompts) -> RequestView:
    cached_tokens = prompts.requests.get(request.request_id)
    return request if cached_tokens is None else replace(request, cached_tokens=cached_tokens)


def _with_prompts(model: ModelView, prompts: Prompts) -> ModelView:
    tokens, cached_tokens = prompts.models.get(model.model_id, (0, 0))
    return replace(model, prompt_tokens=tokens, cached_prompt_tokens=cached_tokens)


def _with_progress(request: RequestView, progress: Mapping[str, int]) -> RequestView:
    num_generated = progress.get(request.request_id, 0)
    if num_generated <= request.num_generated:
        return request
    tokens_per_s = request.tokens_per_s
    age_ms = request.age_ms if request.total_ms is None else request.total_ms
    if request.ttft_ms is not None and age_ms > request.ttft_ms:
        tokens_per_s = 1e3 * (num_generated - 1) / (age_ms - request.ttft_ms)
    return replace(request, num_generated=num_generated, tokens_per_s=tokens_per_s)
