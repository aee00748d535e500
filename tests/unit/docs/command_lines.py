"""Command lines held against the real application: commands, options, choices, arguments."""

import re
import shlex
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from plait.cli.app import app

APPLICATION: Final = get_command(app)
START: Final = re.compile(r"(?:^|[\s(])plait(?:-node-\w+)? (?=[a-z-])")
"""`plait`, or an image of it, which has it as its entry point."""
END: Final = re.compile(r"\s{3,}|\s#|\s[>|;&]{1,2}(?:\s|$)|[);](?:\s|$)|`")
"""Behind the command: words for the reader, another command, a shell's own signs."""


def command_lines(text: str) -> Iterator[list[str]]:
    """The words behind each `plait` of a line."""
    for start in START.finditer(text):
        rest = text[start.end() :]
        end = END.search(rest)
        words = rest[: end.start()] if end else rest
        yield shlex.split(words.replace("...", "").replace("[", " ").replace("]", " "))


def fault(words: Sequence[str], *, is_whole: bool = True) -> str | None:
    """What is wrong with a command line, or None. One that is not whole may leave out arguments:
    it names a command and does not call it."""
    command, rest = APPLICATION, list(words)
    while isinstance(command, TyperGroup) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name not in command.commands:
            return f"no command {name!r} in {command.name!r}"
        command = command.commands[name]
    if isinstance(command, TyperGroup):
        known = {name for parameter in command.params for name in parameter.opts}
        wrong = [word for word in rest if word not in {*known, "--help", "-h"}]
        return f"no option {wrong[0]} of {command.name!r}" if wrong else None
    assert isinstance(command, TyperCommand)
    if command.context_settings.get("ignore_unknown_options"):  # it hands its words on
        return fault(["node", "join", *rest], is_whole=is_whole)
    if "--" in rest:  # and so does this, behind the dashes
        at = rest.index("--")
        return fault(["node", "join", *rest[at + 1 :]]) or fault([*words[: -len(rest)], *rest[:at]])
    return _fault_of(command, rest, is_whole=is_whole)


def _fault_of(command: TyperCommand, rest: list[str], *, is_whole: bool) -> str | None:
    options = {
        name: parameter
        for parameter in command.params
        if isinstance(parameter, TyperOption)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    missing = {id(option): name for name, option in options.items() if option.required}
    places: list[str] = []
    words = list(rest)
    while words:
        word, equals, value = words.pop(0).partition("=")
        if not word.startswith("-") or word == "-":
            places.append(word)
        elif word in ("--help", "-h"):
            return None
        elif word not in options:
            return f"no option {word} of {command.name!r}"
        else:
            option = options[word]
            missing.pop(id(option), None)
            if not option.is_flag and not equals:
                if not words:
                    return f"{word} without a value" if is_whole else None
                value = words.pop(0)
            kind = type(option.default)
            choices = {str(one.value) for one in kind} if issubclass(kind, Enum) else {value}
            if not value.isupper() and not set(value.split("|")) <= choices:
                return f"{word} is one of {', '.join(sorted(choices))}"
    arguments = [one for one in command.params if not isinstance(one, TyperOption)]
    if not any(one.nargs < 0 for one in arguments) and len(places) > len(arguments):
        return f"too many arguments: {places}"
    if is_whole or rest:
        named = [str(one.name) for one in arguments if one.required][len(places) :]
        if named or missing:
            return f"missing: {', '.join([*named, *missing.values()])}"
    return None


def known_options() -> set[str]:
    """All options of all commands."""
    commands = [command for _, command in _walk(APPLICATION, "")]
    names = (name for one in commands for p in one.params for name in (*p.opts, *p.secondary_opts))
    return {"--help", *names}


def all_commands() -> list[str]:
    """`ask`, `node join`, `token key list`: all that can be called."""
    found = _walk(APPLICATION, "")
    return [words for words, command in found if not isinstance(command, TyperGroup)]


def _walk(command: object, words: str) -> Iterator[tuple[str, TyperGroup | TyperCommand]]:
    assert isinstance(command, TyperGroup | TyperCommand)
    yield words.strip(), command
    if isinstance(command, TyperGroup):
        for name, part in command.commands.items():
            yield from _walk(part, f"{words} {name}")
