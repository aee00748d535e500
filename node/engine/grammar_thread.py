"""A thread that compiles grammars, so that no step of other requests waits for one.

The first constrained request also has it read the model's vocabulary: some tenths of a second.
"""

import queue
import threading
from collections.abc import Callable
from typing import Final, Protocol

from node.engine.grammar import Grammar, GrammarCompiler
from plait.errors import OverloadedError, PlaitError, ServiceError
from plait.types import Constraint

WAITING_MAX: Final = 256

GrammarDone = Callable[[PlaitError | None], None]
"""Called from the grammars' thread, with None where all went well."""

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


class GrammarThread:
    """Gives one request after the other its grammar. The thread starts when it is needed and ends
    soon after `close`; what waits then is never answered."""

    def __init__(self, make_compiler: MakeCompiler) -> None:
        self._make_compiler = make_compiler
        self._compiler: GrammarCompiler | None = None
        self._waiting: queue.Queue[tuple[Constrained, GrammarDone] | None] = queue.Queue(
            WAITING_MAX
        )
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def ask(self, request: Constrained, done: GrammarDone) -> None:
        """Queue a request for its grammar. Raises OverloadedError(reason="queue_full")."""
        try:
            self._waiting.put_nowait((request, done))
        except queue.Full:
            raise OverloadedError(
                f"{WAITING_MAX} requests wait for their grammars already", reason="queue_full"
            ) from None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="plait-grammar", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Idempotent; does not wait."""
        self._is_closed = True
        try:
            self._waiting.put_nowait(None)  # wakes an idle thread
        except queue.Full:  # it is not idle
            return

    def _run(self) -> None:
        while not self._is_closed:
            asked = self._waiting.get()
            if asked is None or self._is_closed:
                return
            request, done = asked
            done(self._try(request))

    def _try(self, request: Constrained) -> PlaitError | None:
        assert request.constraint is not None
        try:
            if self._compiler is None:
                self._compiler = self._make_compiler()
            request.grammar = self._compiler.grammar(request.constraint, request.generated_ids)
        except PlaitError as error:
            return error
        except Exception as error:  # root: this request fails, the thread goes on
            return ServiceError(
                f"a grammar could not be made: {type(error).__name__}: {error}",
                reason="vocabulary_unavailable",
            )
        return None
