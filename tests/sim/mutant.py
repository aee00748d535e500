"""One guard taken out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One textual change of one file; `old` must stand there exactly once."""

    name: str
    path: str
    old: str
    new: str
