"""How families of models write function calls, and the grammars of these forms.

Which one a model was taught is told from its own chat template. A model whose template knows no
functions is shown them in a system message and writes plain JSON.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from coordinator.gateway.conversation import ToolFunction, ToolMode, ToolUse
from plait.types import Constraint, ConstraintKind
from plait.types.grammar import json_rule, regex_rule, text_rule

CALLS_MAX: Final = 16
"""Calls of one answer that is held by a grammar."""

_VALUES: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords of a schema whose values are no schemas."""

_ANY_OBJECT: Final = '{"type": "object"}'


class Family(StrEnum):
    """Hermes and Qwen put each call in tags, Mistral all of them in a list behind a marker, Llama
    3.1 writes bare objects, and so does a model that was taught no form (PLAIN)."""

    HERMES = "hermes"
    MISTRAL = "mistral"
    LLAMA = "llama"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A form of calls. `opening_id` is the token of `opening` where that is a special one."""

    family: Family
    opening: str = ""
    closing: str = ""
    separator: str = "\n"
    opening_id: int | None = None

    @property
    def arguments_key(self) -> str:
        return "parameters" if self.family is Family.LLAMA else "arguments"

    @property
    def is_marked(self) -> bool:
        """Whether calls are told from text by their marks; else an answer is calls or text."""
        return self.family in (Family.HERMES, Family.MISTRAL)


_FORMS: Final = {
    Family.HERMES: ToolFormat(
        family=Family.HERMES, opening="<tool_call>", closing="</tool_call>", separator="\n"
    ),
    Family.MISTRAL: ToolFormat(family=Family.MISTRAL, opening="[TOOL_CALLS]", separator=", "),
    Family.LLAMA: ToolFormat(family=Family.LLAMA, opening="<|python_tag|>", separator="; "),
    Family.PLAIN: ToolFormat(family=Family.PLAIN),
}


def format_of(template: str | None, *, knows_tools: bool) -> ToolFormat:
    """The form that a chat template teaches."""
    if template is None or not knows_tools:
        return _FORMS[Family.PLAIN]
    if "[TOOL_CALLS]" in template:
        return _FORMS[Family.MISTRAL]
    if "<tool_call>" in template:
        return _FORMS[Family.HERMES]
    if "python_tag" in template or '"parameters"' in template:
        return _FORMS[Family.LLAMA]
    return _FORMS[Family.PLAIN]


def calls_constraint(
    tools: ToolUse, form: ToolFormat, content: Constraint | None
) -> Constraint | None:
    """What holds an answer to `tools`, or None where the model is free.

    Args:
        content: what holds its text, where it does not call.

    Raises ValueError for a schema that is none.
    """
    if tools.mode is ToolMode.NONE or (content is None and not tools.is_constrained):
        return content
    rules = [f"calls: {_calls(tools, form)}", *_call_rules(tools, form)]
    if tools.mode is ToolMode.REQUIRED:
        rules.insert(0, "start: calls")
    elif content is not None:
        rules[:0] = ["start: text | calls", f"text: {_content_rule(content)}"]
    elif form.family is Family.HERMES:
        rules = [*_free_text_with_tags(tools, form), *_call_rules(tools, form)]
    elif form.family is Family.MISTRAL and form.opening_id is not None:
        rules[:0] = ["start: text | text calls", "text: /(.|\\n)*/"]
    else:
        first = "\\[" if form.family is Family.MISTRAL else "{"
        rules[:0] = ["start: text | calls", f"text: /([^{first} \\t\\r\\n](.|\\n)*)?/"]
    return Constraint(ConstraintKind.GRAMMAR, "\n".join(rules) + "\n")


def _content_rule(content: Constraint) -> str:
    match content.kind:
        case ConstraintKind.JSON_SCHEMA:
            return json_rule(content.text)
        case ConstraintKind.REGEX:
            return regex_rule(content.text)
        case ConstraintKind.GRAMMAR:
            raise ValueError("a grammar cannot be joined with tools")


def _call_rules(tools: ToolUse, form: ToolFormat) -> list[str]:
    """The rules `call`, one alternative a function."""
    functions = tools.callable_functions
    rules = ["call: " + " | ".join(f"call_{at}" for at in range(len(functions)))]
    for at, function in enumerate(functions):
        rules.append(f"call_{at}: {json_rule(call_schema(function, form))}")
    return rules


def call_schema(function: ToolFunction, form: ToolFormat) -> str:
    """The JSON schema of a call of `function`. Raises ValueError for parameters that are none."""
    key = form.arguments_key
    arguments = json.loads(function.parameters or _ANY_OBJECT)
    if isinstance(arguments, dict):
        arguments.pop("$id", None)
    schema = {
        "type": "object",
        "properties": {
            "name": {"const": function.name},
            key: _moved(arguments, f"#/properties/{key}"),
        },
        "required": ["name", key],
        "additionalProperties": False,
    }
    return json.dumps(schema, ensure_ascii=False)


def _moved(schema: object, root: str) -> object:
    """A schema whose own root has become the place `root`: its references follow it."""
    if isinstance(schema, list):
        return [_moved(inner, root) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, object] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[key] = root + value[1:]
        else:
            moved[key] = value if key in _VALUES else _moved(value, root)
    return moved


def _calls(tools: ToolUse, form: ToolFormat) -> str:
    """The term for all calls of an answer."""
    one = "call"
    if form.family is Family.HERMES:
        one = f"({text_rule(form.opening)} {text_rule(chr(10))} call {_closing(form)})"
    more = f" ({text_rule(form.separator)} {one}){{0,{CALLS_MAX - 1}}}" if tools.is_parallel else ""
    if form.family is not Family.MISTRAL:
        return one + more
    opening = text_rule(form.opening) if form.opening_id is None else f"<[{form.opening_id}]>"
    return f'{opening} "[" {one}{more} "]"'


def _closing(form: ToolFormat) -> str:
    return text_rule("\n" + form.closing)


def _free_text_with_tags(tools: ToolUse, form: ToolFormat) -> list[str]:
    """Text in which calls stand in tags: what opens a tag ends the text at once."""
    times = "*" if tools.is_parallel else "?"
    return [
        f"start: tagged{times} rest",
        f"tagged: opened {text_rule(chr(10))} call {_closing(form)}",
        f"opened[lazy]: TEXT {text_rule(form.opening)}",
        "rest: TEXT",
        "TEXT: /(.|\\n)*/",
    ]
