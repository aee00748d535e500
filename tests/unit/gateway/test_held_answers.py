"""Grammars of calls and answers, compiled by the real compiler over bytes."""

import json
from dataclasses import replace

import pytest
from llguidance import LLMatcher, LLTokenizer

from coordinator.gateway.compile_process import Compiler, _Bytes
from coordinator.gateway.conversation import ToolFunction, ToolMode, ToolUse
from coordinator.gateway.tool_formats import Family, ToolFormat, calls_constraint
from plait.types import Constraint, ConstraintKind
from plait.types.grammar import grammar_of
from tests.unit.gateway.test_tool_calls import form

NUMBER = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}'  # noqa: E501
ADD = ToolFunction(name="add", parameters=NUMBER)
NOOP = ToolFunction(name='no"op', parameters="")
FORCED = ToolUse(functions=(ADD, NOOP), mode=ToolMode.REQUIRED)
SCHEMA = Constraint(ConstraintKind.JSON_SCHEMA, '{"type": "object", "properties": {"x": {}}}')


def accepts(constraint: Constraint, text: str) -> bool:
    """Whether the whole of `text` may be said."""
    tokenizer = LLTokenizer(_Bytes(), n_vocab=257, eos_token=[256])  # type: ignore[arg-type]
    matcher = LLMatcher(tokenizer, grammar_of(constraint), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    content = list(text.encode())
    return matcher.try_consume_tokens(content) == len(content) and matcher.is_accepting()


def held(tools: ToolUse, family: Family, content: Constraint | None = None) -> Constraint:
    constraint = calls_constraint(tools, form(family), content)
    assert constraint is not None
    return constraint


def call(family: Family, name: str = "add", arguments: str = '{"a": 1}') -> str:
    key = "parameters" if family is Family.LLAMA else "arguments"
    content = f'{{"name": {json.dumps(name)}, "{key}": {arguments}}}'
    return f"<tool_call>\n{content}\n</tool_call>" if family is Family.HERMES else content


def answer(family: Family, *calls: str) -> str:
    joined = {Family.LLAMA: "; ", Family.MISTRAL: ", "}.get(family, "\n").join(calls)
    return f"[TOOL_CALLS][{joined}]" if family is Family.MISTRAL else joined


@pytest.mark.parametrize("family", Family)
def test_forced_calls_have_the_familys_form_and_their_schemas(family: Family) -> None:
    constraint = held(FORCED, family)
    add, noop = call(family), call(family, 'no"op', "{}")
    assert accepts(constraint, answer(family, add))
    assert accepts(constraint, answer(family, noop, add))
    assert not accepts(constraint, "")
    assert not accepts(constraint, "Hello.")
    assert not accepts(constraint, answer(family, call(family, "rm")))
    assert not accepts(constraint, answer(family, call(family, arguments='{"a": "1"}')))
    assert not accepts(constraint, answer(family, *[add] * 17))
    alone = held(replace(FORCED, is_parallel=False), family)
    assert accepts(alone, answer(family, add)) and not accepts(alone, answer(family, add, add))
    named = held(replace(FORCED, named="add"), family)
    assert accepts(named, answer(family, add)) and not accepts(named, answer(family, noop))


@pytest.mark.parametrize("family", Family)
def test_a_strict_function_holds_calls_and_leaves_text_free(family: Family) -> None:
    strict = ToolUse(functions=(replace(ADD, is_strict=True),))
    constraint = held(strict, family)
    assert accepts(constraint, "")
    assert accepts(constraint, "Hello,\nworld.")
    assert accepts(constraint, answer(family, call(family)))
    assert not accepts(constraint, answer(family, call(family, arguments='{"b": 1}')))


def test_a_mark_that_is_a_special_token_is_meant_as_one() -> None:
    mistral: ToolFormat = replace(form(Family.MISTRAL), opening_id=200)
    constraint = calls_constraint(FORCED, mistral, None)
    assert constraint is not None and "<[200]>" in constraint.text
    free = calls_constraint(ToolUse(functions=(replace(ADD, is_strict=True),)), mistral, None)
    assert free is not None and accepts(free, "[TOOL_CALLS] is a word here.")


@pytest.mark.parametrize("family", Family)
def test_a_held_text_and_tools_are_either_or(family: Family) -> None:
    constraint = held(ToolUse(functions=(ADD,)), family, SCHEMA)
    assert accepts(constraint, '{"x": [1]}')
    assert accepts(constraint, answer(family, call(family)))
    assert not accepts(constraint, "Hello.")
    pattern = held(ToolUse(functions=(ADD,)), family, Constraint(ConstraintKind.REGEX, "yes|no"))
    assert accepts(pattern, "yes") and not accepts(pattern, "maybe")
    with pytest.raises(ValueError, match="joined"):
        held(ToolUse(functions=(ADD,)), family, Constraint(ConstraintKind.GRAMMAR, 'start: "a"'))


def test_free_tools_hold_nothing() -> None:
    free = ToolUse(functions=(ADD,))
    assert calls_constraint(free, form(Family.HERMES), None) is None
    none = replace(FORCED, mode=ToolMode.NONE)
    assert calls_constraint(none, form(Family.HERMES), SCHEMA) is SCHEMA


def test_references_of_parameters_stay_theirs() -> None:
    tree = {
        "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}},
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/n"}, "again": {"$ref": "#"}},
        "additionalProperties": False,
    }
    tools = ToolUse(
        functions=(ToolFunction(name="add", parameters=json.dumps(tree)),), mode=ToolMode.REQUIRED
    )
    constraint = held(tools, Family.HERMES)
    assert accepts(constraint, call(Family.HERMES, arguments='{"root": {"n": {"n": {}}}}'))
    assert accepts(constraint, call(Family.HERMES, arguments='{"again": {"root": {}}}'))
    assert not accepts(constraint, call(Family.HERMES, arguments='{"again": {"n": {}}}'))


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


@pytest.mark.parametrize(
    ("schema", "path", "reason"),
    [
        ('{"properties": {"a": {"type": "strin"}}}', ".properties.a", "strin"),
        (
            '{"properties": {"a": {"items": {"pattern": "(["}}}}',
            ".properties.a.items",
            "unclosed",
        ),
        ('{"anyOf": [{}, {"not": {}}]}', ".anyOf[1]", "not"),
        ('{"$defs": {"a": {"oneOf": [{}, {}]}}, "$ref": "#/$defs/a"}', ".$defs.a", "anyOf"),
        ('{"$ref": "#/$defs/nowhere"}', "", "does not exist"),
        ('{"$ref": "https://example.org/schema"}', "", "example.org"),
        (
            '{"type": "object", "required": ["a"], '
            '"properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}}}',
            ".properties.a",
            "",
        ),
        (nested(65), "", "deeper"),
    ],
)
def test_a_fault_is_told_with_its_place(schema: str, path: str, reason: str) -> None:
    told, where = Compiler().check(Constraint(ConstraintKind.JSON_SCHEMA, schema))
    assert told is not None and reason in told and "llguidance" not in told
    assert where == path


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint(ConstraintKind.REGEX, "(a"),
        Constraint(ConstraintKind.GRAMMAR, "start: x"),
        Constraint(ConstraintKind.GRAMMAR, ""),
    ],
)
def test_patterns_and_grammars_that_cannot_be_compiled(constraint: Constraint) -> None:
    assert Compiler().check(constraint)[0] is not None


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [f"v{i}" for i in range(4000)]},
        {"type": "string", "pattern": "^(a+)+$"},
        {"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
        {"$ref": "#"},
        {"type": "array", "minItems": 10**6},
        {"type": "string", "maxLength": 10**9},
        {"type": "string", "pattern": "(.*a.{20}){8}"},
        {"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}b{1,1000}"},
        {"properties": {f"p{i}": {"type": "string"} for i in range(800)}},
    ],
)
def test_hostile_schemas_come_back_in_time(schema: dict[str, object]) -> None:
    """Whatever the outcome; the compiler's own bounds hold."""
    Compiler().check(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)))
