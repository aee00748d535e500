"""Guessed tokens, counted."""

from dataclasses import dataclass, replace


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
