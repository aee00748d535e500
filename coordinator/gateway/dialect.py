"""How an API writes answers: what differs between the HTTP door's APIs behind one port."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from coordinator.gateway.happenings import CallDelta, Delta, Finished, GeneratedToken
from coordinator.gateway.tokens import Tokenizer
from plait.errors import PlaitError

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What all objects of one response share. `created_s` is Unix time. `echo` is what the answer
    repeats of its request. `num_choices_per_prompt` choices have one prompt in common."""

    response_id: str
    created_s: int
    model_id: str
    is_chat: bool
    top_logprobs: int | None
    service_tier: str
    prompt_tokens: int = 0
    includes_usage: bool = False
    num_choices_per_prompt: int = 1
    echo: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class ChoiceState:
    """One choice as it grows. `cached_tokens` of its prompt were not run."""

    index: int
    tokenizer: Tokenizer
    parts: list[str] = field(default_factory=list)
    tokens: list[GeneratedToken] = field(default_factory=list)
    calls: list[CallDelta] = field(default_factory=list)
    cached_tokens: int = 0

    def add(self, happening: Delta | CallDelta) -> None:
        """Put a piece of text or of a call behind the earlier ones."""
        if isinstance(happening, Delta):
            self.parts.append(happening.text)
            self.tokens.extend(happening.tokens)
        elif happening.index == len(self.calls):
            self.calls.append(happening)
        else:
            known = self.calls[happening.index]
            arguments = known.arguments + happening.arguments
            self.calls[happening.index] = replace(known, arguments=arguments)

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event; most APIs name theirs."""

    content: Json
    name: str = ""


class Dialect(Protocol):
    """One API's way to write one response. Streams call the methods in this order: `begun` once for
    a choice, `piece` for each of its pieces, `ended` once; `closed` behind the last choice. A
    choice has taken a piece before the dialect hears of it."""

    last_words: bytes
    """What ends a stream that went well."""

    def begun(self, choice: ChoiceState) -> list[Event]: ...

    def piece(self, choice: ChoiceState, happening: Delta | CallDelta) -> list[Event]: ...

    def ended(self, choice: ChoiceState, finished: Finished) -> list[Event]: ...

    def closed(self, finished: Sequence[Finished]) -> list[Event]: ...

    def failed(self, error: PlaitError) -> Event:
        """What ends a stream that failed."""
        ...

    def answer(self, choices: Sequence[tuple[ChoiceState, Finished]]) -> Json:
        """The whole response of a request that does not stream."""
        ...


MakeDialect = Callable[[Envelope], Dialect]
