"""A thread that compiles grammars, so that no step of other requests waits for one.

The first constrained request also has it read the model's vocabulary: some tenths of a second.
"""

from collections.abc import Callable
from typing import Protocol

from node.engine.background import Background
from node.engine.grammar import Grammar, GrammarCompiler
from plait.errors import ServiceError
from plait.types import Constraint

MakeCompiler = Callable[[], GrammarCompiler]
"""Reads the vocabulary; may take its time. Raises ModelError, WeightsError."""


class Constrained(Protocol):
    """A request that waits for its grammar."""

    @property
    def constraint(self) -> Constraint | None: ...

    @property
    def generated_ids(self) -> list[int]:
        """What it has generated so far."""
        ...

    grammar: Grammar | None


class GrammarThread(Background[Constrained]):
    """Gives one request after the other its grammar."""

    def __init__(self, make_compiler: MakeCompiler) -> None:
        super().__init__(
            self._give,
            name="plait-grammar",
            waiting="requests wait for their grammars",
            failed=_not_made,
        )
        self._make_compiler = make_compiler
        self._compiler: GrammarCompiler | None = None

    def _give(self, request: Constrained) -> None:
        assert request.constraint is not None
        if self._compiler is None:
            self._compiler = self._make_compiler()
        request.grammar = self._compiler.grammar(request.constraint, request.generated_ids)


def _not_made(error: Exception) -> ServiceError:
    return ServiceError(
        f"a grammar could not be made: {type(error).__name__}: {error}",
        reason="vocabulary_unavailable",
    )
