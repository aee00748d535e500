"""Guessed tokens, counted, and how the small model is that guesses some of them."""

from dataclasses import dataclass, replace
from enum import StrEnum


class DraftState(StrEnum):
    """What a node's draft model does. Idle: the node is no first stage."""

    IDLE = "idle"
    GUESSING = "guessing"
    REFUSED = "refused"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftHealth:
    """A node's draft model. `why` it is refused or lost, for people; `num_failed` steps brought no
    guess because they failed."""

    model_id: str
    state: DraftState
    why: str = ""
    num_failed: int = 0

    @property
    def complaint(self) -> str:
        """What is wrong with it, in one line; "" where nothing is."""
        return draft_complaint(self.model_id, self.state, self.why)


def draft_complaint(model_id: str, state: str, why: str) -> str:
    """The same of a draft model that is known by its words only."""
    return f"draft model {model_id} {state}: {why}" if why else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessTotals:
    """Each trip round a chain brings a token, and before it the guesses that were right: of
    `guessed` ones `accepted`. Those of the draft model are among them, `by_model`."""

    trips: int = 0
    guessed: int = 0
    accepted: int = 0
    guessed_by_model: int = 0
    accepted_by_model: int = 0

    def and_trip(self, *, guessed: int) -> "GuessTotals":
        """With a trip more, and the guesses that were checked in it."""
        return replace(self, trips=self.trips + 1, guessed=self.guessed + guessed)

    def and_right_guess(self) -> "GuessTotals":
        """With a guess more that was right."""
        return replace(self, accepted=self.accepted + 1)
