"""What a constrained request may say next: masks over the vocabulary, from llguidance.

A grammar is compiled once and copied for each request that uses it. It lives on the last stage
alone, beside the logits; the vocabulary's bytes come from the model's own files.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from torch import Tensor

from plait.errors import InvalidRequestError, ServiceError
from plait.models.vocabulary import Vocabulary
from plait.types import Constraint
from plait.types.grammar import (
    COMPILE_FUEL,
    GRAMMAR_SIZE_MAX,
    STEP_FUEL,
    STEP_ITEMS_MAX,
    grammar_of,
)

COMPILED_MAX: Final = 64
"""Compiled grammars kept for requests to come."""

GRAMMAR_FAULT: Final = "grammar_failed"
"""The code of a grammar's own fault, which no other node would mend."""

REPLAY_FAULT: Final = "grammar_replay"
"""What was generated before this chain does not follow the grammar here."""

_SPECIAL_MARK: Final = b"\xff"
"""What llguidance wants in front of a special token's name."""


class Grammar:
    """One request's place in its grammar."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def fill(self, mask: Tensor) -> None:
        """Set the bits of the tokens that may come next in `mask`: (words,) int32, on the CPU.

        Raises InvalidRequestError(reason="grammar_failed") where a step is too much work.
        """
        self._matcher.unsafe_compute_mask_ptr(mask.data_ptr(), mask.numel() * 4)
        self._check()

    def accept(self, token_id: int) -> None:
        """Go on behind a token that `fill` allowed. Raises as `fill`."""
        self._matcher.consume_token(token_id)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise _fault(f"the constraint cannot be followed: {self._matcher.get_error()}")


class GrammarCompiler:
    """Compiles constraints over one model's vocabulary. One thread at a time."""

    def __init__(
        self, vocabulary: Vocabulary, *, vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        self._tokenizer = LLTokenizer(
            _Tokens(vocabulary, vocab_size, eos_token_ids),  # type: ignore[arg-type]
            n_vocab=vocab_size,
            eos_token=list(eos_token_ids),
        )
        self._limits = LLParserLimits(
            initial_lexer_fuel=COMPILE_FUEL,
            step_lexer_fuel=STEP_FUEL,
            step_max_items=STEP_ITEMS_MAX,
            max_grammar_size=GRAMMAR_SIZE_MAX,
            verbose_errors=False,
        )
        self._compiled: OrderedDict[Constraint, LLMatcher] = OrderedDict()

    def grammar(self, constraint: Constraint, generated_ids: Sequence[int]) -> Grammar:
        """A request's grammar, behind what it has generated already.

        Raises InvalidRequestError(reason="grammar_failed") for a constraint that does not compile,
        ServiceError(reason="grammar_replay") where `generated_ids` do not follow it.
        """
        compiled = self._compiled.get(constraint)
        if compiled is None:
            compiled = self._compile(constraint)
            self._compiled[constraint] = compiled
            if len(self._compiled) > COMPILED_MAX:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(constraint)
        matcher = compiled.deep_copy()
        if generated_ids and not matcher.consume_tokens(list(generated_ids)):
            raise ServiceError(
                "what was generated so far does not follow the constraint on this node",
                reason=REPLAY_FAULT,
            )
        return Grammar(matcher)

    def _compile(self, constraint: Constraint) -> LLMatcher:
        try:
            text = grammar_of(constraint)
        except (ValueError, RecursionError) as error:
            raise _fault(f"the constraint is no schema: {error}") from error
        matcher = LLMatcher(self._tokenizer, text, limits=self._limits, log_level=0)
        if matcher.is_error():
            raise _fault(f"the constraint does not compile: {matcher.get_error()}")
        return matcher


class Masks:
    """Turns rows of bits into scores of minus infinity. `bits` (rows, words) int32, CPU."""

    def __init__(self) -> None:
        self._tables: dict[torch.device, Tensor] = {}

    def forbid(self, scores: Tensor, rows: list[int], bits: Tensor) -> None:
        """Set what is not allowed to minus infinity in `rows` of float32 (rows, vocab), in place;
        tokens past the last bit are not allowed."""
        octets = bits.view(torch.uint8).flatten().to(scores.device, torch.int32)
        added = self._table(scores.device).index_select(0, octets).view(len(rows), -1)
        added = added[:, : scores.shape[1]]
        if len(rows) == len(scores):
            scores += added
        else:
            scores[rows] += added

    def _table(self, device: torch.device) -> Tensor:
        """(256, 8) float32: what the bits of an octet, lowest first, add to eight scores. A lookup
        and a sum take a quarter of the time of a boolean mask on a CPU."""
        table = self._tables.get(device)
        if table is None:
            octets = torch.arange(256).unsqueeze(1)
            is_allowed = ((octets >> torch.arange(8)) & 1).bool()
            table = torch.where(is_allowed, 0.0, -torch.inf).to(device)
            self._tables[device] = table
        return table


def mask_words(vocab_size: int) -> int:
    """int32 words that hold a bit for each token."""
    return (vocab_size + 31) // 32


class _Tokens:
    """A vocabulary in the form that llguidance reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()

    def __init__(
        self, vocabulary: Vocabulary, vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        special = vocabulary.special
        self.eos_token_id = eos_token_ids[0]
        self.tokens = [
            piece or _SPECIAL_MARK + special.get(token_id, f"<{token_id}>").encode()
            for token_id, piece in enumerate(vocabulary.pieces[:vocab_size])
        ]
        self._by_bytes = {piece: at for at, piece in reversed([*enumerate(self.tokens)])}
        self._longest = max((len(piece) for piece in self.tokens), default=0)

    def __call__(self, text: str) -> list[int]:
        """Token ids by longest match. Only asked for grammars that force texts, which ours do
        not."""
        content = text.encode()
        ids: list[int] = []
        at = 0
        while at < len(content):
            ends = range(min(len(content), at + self._longest), at, -1)
            end = next((end for end in ends if content[at:end] in self._by_bytes), None)
            if end is None:
                break
            ids.append(self._by_bytes[content[at:end]])
            at = end
        return ids


def _fault(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, reason=GRAMMAR_FAULT)
