"""Calls are told from text however the answer is cut, and what is no call stays text."""

import itertools
import json
import random

import pytest

from coordinator.gateway.call_reader import CallReader
from coordinator.gateway.tool_calls import CallPiece, CallScanner, TextPiece
from coordinator.gateway.tool_formats import Family, ToolFormat, format_of

TEMPLATES = {
    Family.HERMES: "{% if tools %}<tool_call>{% endif %}",
    Family.MISTRAL: "{% if tools %}[TOOL_CALLS]{% endif %}",
    Family.LLAMA: "{% if tools %}<|python_tag|>{% endif %}",
    Family.PLAIN: "{{ messages }}",
}


def form(family: Family) -> ToolFormat:
    return format_of(TEMPLATES[family], knows_tools=family is not Family.PLAIN)


def scan(
    family: Family, pieces: list[str], *, is_parallel: bool = True
) -> tuple[str, list[tuple[str, str, str]], list[str]]:
    """(text, calls, the shape of the stream)."""
    scanner = CallScanner(
        form(family), ["add", "noop"], lambda i: f"id{i}", is_parallel=is_parallel
    )
    told = [piece for text in pieces for piece in scanner.feed(text)] + scanner.flush()
    text = "".join(piece.text for piece in told if isinstance(piece, TextPiece))
    calls: list[tuple[str, str, str]] = []
    for piece in told:
        if isinstance(piece, CallPiece):
            if piece.index == len(calls):
                assert piece.call_id and piece.name
                calls.append((piece.call_id, piece.name, piece.arguments))
            else:
                assert piece.index == len(calls) - 1 and not piece.call_id and not piece.name
                calls[-1] = (*calls[-1][:2], calls[-1][2] + piece.arguments)
    assert scanner.num_calls <= len(calls)
    return text, calls, [type(piece).__name__ for piece in told]


ADD = '{"name": "add", "arguments": {"a": 1, "s": "}\\"{[</tool_call>"}}'
ARGUMENTS = '{"a": 1, "s": "}\\"{[</tool_call>"}'
ADD_LLAMA = ADD.replace('"arguments"', '"parameters"')
ONE = [("id0", "add", ARGUMENTS)]
TWO = [*ONE, ("id1", "noop", "{}")]

ANSWERS = [
    (Family.HERMES, f"<tool_call>\n{ADD}\n</tool_call>", "", ONE),
    (Family.HERMES, f"Let me see.\n<tool_call>{ADD}</tool_call>", "Let me see.\n", ONE),
    (
        Family.HERMES,
        f'<tool_call>\n{ADD}\n</tool_call>\n<tool_call>\n{{"name": "noop"}}\n</tool_call>\n',
        "",
        TWO,
    ),
    (Family.HERMES, f"<tool_call>{ADD}</tool_call> Done.", " Done.", ONE),
    (Family.HERMES, f"<tool_call>{ADD}", "", ONE),
    (Family.HERMES, "a < b, <tool", "a < b, <tool", []),
    (Family.HERMES, "<tool_call>no</tool_call>", "<tool_call>no</tool_call>", []),
    (Family.HERMES, '<tool_call>{"name": 7}</tool_call>', '<tool_call>{"name": 7}</tool_call>', []),
    (
        Family.HERMES,
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        [],
    ),
    (
        Family.HERMES,
        f'<tool_call>{{"arguments": {ARGUMENTS}, "name": "add"}}</tool_call>',
        "",
        ONE,
    ),
    (
        Family.HERMES,
        f'<tool_call>{{"name": "add", "arguments": {json.dumps(ARGUMENTS)}}}</tool_call>',
        "",
        ONE,
    ),
    (Family.MISTRAL, f'[TOOL_CALLS] [{ADD}, {{"name": "noop", "arguments": null}}]', "", TWO),
    (Family.MISTRAL, f"[TOOL_CALLS][{ADD}]", "", ONE),
    (Family.MISTRAL, "[TOOL_CALLS]", "[TOOL_CALLS]", []),
    (Family.MISTRAL, "[1, 2]", "[1, 2]", []),
    (Family.LLAMA, ADD_LLAMA, "", ONE),
    (Family.LLAMA, f"<|python_tag|>{ADD_LLAMA}", "", ONE),
    (Family.LLAMA, f'{ADD_LLAMA}; {{"name": "noop", "parameters": {{}}}}', "", TWO),
    (Family.LLAMA, f"Look: {ADD_LLAMA}", f"Look: {ADD_LLAMA}", []),
    (Family.PLAIN, f' {ADD}\n{{"name": "noop"}}\n', "", TWO),
    (Family.PLAIN, '{"a": 1}', '{"a": 1}', []),
    (Family.PLAIN, '  {"name": "rm"} x', '  {"name": "rm"} x', []),
    (Family.PLAIN, "", "", []),
]


@pytest.mark.parametrize(("family", "answer", "text", "calls"), ANSWERS)
def test_calls_and_text_however_they_are_cut(
    family: Family, answer: str, text: str, calls: list[tuple[str, str, str]]
) -> None:
    rng = random.Random(answer)
    cuts = [[answer], list(answer)]
    for _ in range(20):
        at = sorted(rng.randrange(len(answer) + 1) for _ in range(4))
        bounds = [0, *at, len(answer)]
        cuts.append([answer[a:b] for a, b in itertools.pairwise(bounds)])
    for pieces in cuts:
        found_text, found_calls, _ = scan(family, pieces)
        assert (found_text, found_calls) == (text, calls), pieces


def test_arguments_come_as_they_are_written() -> None:
    _, calls, kinds = scan(Family.HERMES, list(f"<tool_call>{ADD}</tool_call>"))
    assert calls == ONE
    assert len(kinds) == len(ARGUMENTS)


def test_an_answer_cut_short_keeps_what_its_call_had() -> None:
    _, calls, _ = scan(Family.HERMES, ['<tool_call>{"name": "add", "arguments": {"a": 1'])
    assert calls == [("id0", "add", '{"a": 1')]


def test_one_call_is_enough_where_only_one_is_allowed() -> None:
    scanner = CallScanner(form(Family.HERMES), ["add"], lambda i: f"id{i}", is_parallel=False)
    scanner.feed(f"<tool_call>{ADD}")
    assert scanner.is_over
    assert scanner.feed("</tool_call> and more") == [] and scanner.flush() == []


@pytest.mark.parametrize("text", ["x", '{"name": "a", 5}', "{]", '{"name"}', "{,}", "{" * 70])
def test_what_is_no_call_is_broken(text: str) -> None:
    reader = CallReader("arguments")
    reader.feed(text)
    assert reader.is_broken and not reader.is_closed


def test_families_are_told_from_their_templates() -> None:
    for family, template in TEMPLATES.items():
        assert format_of(template, knows_tools=family is not Family.PLAIN).family is family
    assert format_of("{{ tools }}", knows_tools=True).family is Family.PLAIN
    assert format_of(None, knows_tools=False).family is Family.PLAIN
