"""The grammar compiler's own process: `python -m coordinator.gateway.compile_process`.

Questions come on standard input and answers go to standard output, each as 4 bytes of length and a
JSON object: a constraint's kind and text; why it does not compile (null: it does) and where in the
schema. What is hostile can only end this process. The first answer, "ready", comes by itself.
"""

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from plait.types import Constraint, ConstraintKind
from plait.types.grammar import (
    COMPILE_FUEL,
    GRAMMAR_SIZE_MAX,
    STEP_FUEL,
    STEP_ITEMS_MAX,
    grammar_of,
)

LENGTH_BYTES: Final = 4
MEMORY_BYTES_MAX: Final = 2 << 30
REASON_CHARS_MAX: Final = 300
SEARCHED_MAX: Final = 500
"""Parts of a schema that are tried for the place of a fault."""

_PREFIX: Final = re.compile(r"\A(at \d+\(\d+\): )?(failed to compile JSON schema: )?")
_SOURCE: Final = re.compile(r"\n +\d+ \| .*", re.DOTALL)
_ADVICE: Final = " Enable 'coerce_one_of' option to approximate oneOf with anyOf"
_MANY: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_ONE: Final = ("items", "additionalProperties", "contains", "not", "if", "then", "else")
_LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
Answer = tuple[str | None, str]


class Compiler:
    """Compiles constraints over an alphabet of bytes: what a node will do, but for the tokens."""

    def __init__(self) -> None:
        self._tokenizer = LLTokenizer(_Bytes(), n_vocab=257, eos_token=[256])  # type: ignore[arg-type]
        self._limits = LLParserLimits(
            initial_lexer_fuel=COMPILE_FUEL,
            step_lexer_fuel=STEP_FUEL,
            step_max_items=STEP_ITEMS_MAX,
            max_grammar_size=GRAMMAR_SIZE_MAX,
            verbose_errors=False,
        )

    def check(self, constraint: Constraint) -> Answer:
        """Why it does not compile (None: it does), and the path of the fault in a schema."""
        try:
            reason = self._fault(constraint)
        except (ValueError, RecursionError) as error:
            return str(error), ""
        if reason is None or constraint.kind is not ConstraintKind.JSON_SCHEMA:
            return reason, ""
        return self._locate(json.loads(constraint.text), reason)

    def _fault(self, constraint: Constraint) -> str | None:
        """Raises ValueError for what is no schema."""
        grammar = grammar_of(constraint)
        matcher = LLMatcher(self._tokenizer, grammar, limits=self._limits, log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()
        if not matcher.is_error():
            return None
        error_text = _SOURCE.sub("", _PREFIX.sub("", matcher.get_error(), count=1))
        return error_text.replace(_ADVICE, " Use anyOf.")[:REASON_CHARS_MAX].strip()

    def _locate(self, schema: object, reason: str) -> Answer:
        """The deepest part of a schema that fails by itself, and why it does."""
        path, num_tried = "", 0
        shared = {
            key: schema[key]
            for key in ("$defs", "definitions")
            if isinstance(schema, dict) and key in schema
        }
        part = schema
        while True:
            for step, child in _children(part):
                num_tried += 1
                if num_tried > SEARCHED_MAX:
                    return reason, path
                alone = {**shared, **child} if isinstance(child, dict) else child
                text = json.dumps(alone, ensure_ascii=False)
                found = self._fault(Constraint(ConstraintKind.JSON_SCHEMA, text))
                if found is not None and not (step in _DEFS and path == ""):
                    part, path, reason = child, path + step, found
                    break
            else:
                return reason, path


_DEFS: Final = frozenset({".$defs", ".definitions"})


def _children(schema: object) -> Iterator[tuple[str, object]]:
    """(path, schema) of the parts right inside."""
    if not isinstance(schema, Mapping):
        return
    for key in _MANY:
        inner = schema.get(key)
        for name, child in inner.items() if isinstance(inner, Mapping) else ():
            yield f".{key}.{name}", child
    for key in _ONE:
        if isinstance(schema.get(key), Mapping):
            yield f".{key}", schema[key]
    for key in _LISTED:
        listed = schema.get(key)
        for at, child in enumerate(listed if isinstance(listed, list) else ()):
            yield f".{key}[{at}]", child


class _Bytes:
    """A vocabulary of the 256 bytes and an end."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()
    eos_token_id = 256
    tokens = (*(bytes([byte]) for byte in range(256)), b"\xff<end>")

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def main() -> None:
    """Answer until standard input ends."""
    _bound_memory()
    compiler = Compiler()
    _write(sys.stdout.buffer, ("ready", ""))
    while (content := _read(sys.stdin.buffer)) is not None:
        question = json.loads(content)
        constraint = Constraint(ConstraintKind(question["kind"]), question["text"])
        _write(sys.stdout.buffer, compiler.check(constraint))


def _bound_memory() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415 - not on every system

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))


def _write(stream: BinaryIO, answer: Answer) -> None:
    payload = json.dumps(answer).encode()
    stream.write(len(payload).to_bytes(LENGTH_BYTES, "big") + payload)
    stream.flush()


def _read(stream: BinaryIO) -> bytes | None:
    header = stream.read(LENGTH_BYTES)
    if len(header) < LENGTH_BYTES:
        return None
    return stream.read(int.from_bytes(header, "big"))


if __name__ == "__main__":
    main()
