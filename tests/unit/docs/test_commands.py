"""What the pages tell a reader to type or to open exists. Nothing is run."""

import ast
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from plait.sdk.requests import GenerateOptions
from tests.unit.docs.command_lines import all_commands, command_lines, fault, known_options
from tests.unit.docs.pages import DECISIONS, PAGES, ROOT, Code, codes, links, slugs

NAMES: Final = [str(page.relative_to(ROOT)) for page in PAGES]
SOURCES: Final = ("plait", "coordinator", "node", "scheduler", "examples")
PATHS: Final = re.compile(
    r"(?:docs|plait|node|coordinator|scheduler|tests|benchmarks|examples|docker|protos|scripts)/[\w/.-]*"
)
SITE_ONLY: Final = {"index", "sdk_reference"}
STATE: Final = re.compile(r"coordinator/(authority|plait\.db|admin\.key|journal|telemetry)\b.*")
"""Places under PLAIT_HOME, which is not this repository."""
OTHERS: Final = {"--gpus", "--network", "--restart", "--cap-drop", "--data", "--target"}
"""Options of Docker and curl that pages speak of."""


@cache
def all_codes() -> tuple[Code, ...]:
    return tuple(code for page in PAGES for code in codes(page))


def of(pattern: str) -> list[tuple[Code, re.Match[str]]]:
    return [(code, found) for code in all_codes() for found in re.finditer(pattern, code.text)]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_of_a_page_is_one_that_plait_takes(page: Path) -> None:
    faults = [
        f"{code}: {wrong}"
        for code in codes(page)
        for words in command_lines(code.text)
        if (wrong := fault(words, is_whole=code.is_block))
    ]
    assert not faults, "\n".join(faults)


def test_commands_that_the_program_itself_names_exist() -> None:
    """Messages say which command helps; examples and containers say how they are started."""
    faults = [
        f"{path.relative_to(ROOT)}: `{span}`: {wrong}"
        for folder in SOURCES
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".toml", ".yml", ".proto")
        for span in re.findall(r"`(plait [a-z][^`\n]*)`", path.read_text("utf-8"))
        for words in command_lines(re.sub(r"\{[^}]*\}", "NAME", span).replace('"', ""))
        if (wrong := fault(words, is_whole=False))
    ]
    assert not faults, "\n".join(faults)


def test_inline_code_ends_on_its_line() -> None:
    """What crosses lines is not found by the tests here, nor by a reader's search."""
    faults = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in PAGES
        for line in re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL).splitlines()
        if line.count("`") % 2
    ]
    assert not faults, "\n".join(faults)


def test_options_that_stand_alone_exist() -> None:
    scripts = "".join(path.read_text("utf-8") for path in (ROOT / "benchmarks").glob("*.py"))
    known = known_options() | set(re.findall(r'"(--[a-z-]+)"', scripts)) | OTHERS
    faults = [str(code) for code, found in of(r"^(--[a-z][\w-]*)") if found[1] not in known]
    assert not faults, "\n".join(faults)


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z]+) \??:?=", makefile, re.MULTILINE))
    called = of(r"(?:^|&& )make((?: [a-z-]+| [A-Z]+=(?:\"[^\"]*\"|\S+))+)")
    assert called
    for code, found in called:
        for word in shlex.split(found[1]):
            name, equals, _ = word.partition("=")
            assert name in (variables if equals else targets), code


def test_benchmarks_exist_and_know_their_options() -> None:
    shared = (ROOT / "benchmarks" / "_bars.py").read_text("utf-8")
    called = of(r"(?:python )?(benchmarks/[\w.]+)((?: --?[a-z][\w-]*(?: [\w.]+)?)*)")
    assert called
    for code, found in called:
        script = ROOT / found[1]
        assert script.is_file(), code
        source = script.read_text("utf-8") + shared
        for option in re.findall(r"--[a-z-]+", found[2]):
            assert f'"{option}"' in source, f"{code}: {option}"


def test_tests_that_are_named_exist() -> None:
    files = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    last: Path | None = None
    for code, found in of(r"^(?:[\w/]*/)?(test_\w+\.py)?(?:::(\w+))?"):
        if found[1]:
            assert found[1] in files, code
            last = files[found[1]]
        if found[2]:
            assert last is not None and f"def {found[2]}(" in last.read_text("utf-8"), code


def test_files_and_modules_that_are_named_exist() -> None:
    for code, found in of(r"(?:^|\s)python -m (tests[\w.]*)"):
        assert (ROOT / f"{found[1].replace('.', '/')}.py").is_file(), code
    for code in all_codes():
        if PATHS.fullmatch(code.text) and not STATE.fullmatch(code.text):
            assert (ROOT / code.text).exists(), code


def test_variables_that_are_named_are_read_somewhere() -> None:
    read = "".join(
        path.read_text("utf-8")
        for folder in (*SOURCES, "tests", "docker-compose.yml")
        for path in ((ROOT / folder).rglob("*.py") if (ROOT / folder).is_dir() else [ROOT / folder])
    )
    for code, found in of(r"\b(PLAIT_[A-Z_]+)"):
        name = "PLAIT_NODE_" if found[1].startswith("PLAIT_NODE_") else found[1]
        assert name in read, code


def test_imports_of_the_pages_are_of_what_there_is() -> None:
    blocks = [
        block
        for page in PAGES
        for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    taken = [
        (node.module, alias.name)
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom)
        and node.module
        and node.module[:5] in ("coord", "plait")
        for alias in node.names
    ]
    assert taken
    for module, name in taken:
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8")
        assert re.search(rf"^(def|class|async def) {name}\b|^{name}\b", source, re.MULTILINE), name


def test_decisions_that_are_named_exist() -> None:
    numbers = {path.name[:4] for path in DECISIONS}
    for code, found in of(r"^(?:docs/decisions/)?(\d{4})$"):
        assert found[1] in numbers, code


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    check_links(page)


def test_links_of_decisions_lead_somewhere() -> None:
    for page in DECISIONS:
        check_links(page)


def check_links(page: Path) -> None:
    for target in links(page):
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), target
        assert there.is_relative_to(ROOT), target
        assert not anchor or anchor in slugs(there), target


def test_every_page_is_reached_from_the_readme() -> None:
    """By those who read the repository; the site has an index and a menu of its own."""
    readme = set(links(ROOT / "README.md"))
    for page in sorted((ROOT / "docs").glob("*.md")):
        assert f"docs/{page.name}" in readme or page.stem in SITE_ONLY, page.name


def test_every_page_is_in_the_menu_of_the_site() -> None:
    named = set(re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M))
    assert named == {path.name for path in (ROOT / "docs").glob("*.md")} | {"decisions/README.md"}


def test_every_command_is_spoken_of() -> None:
    text = " ".join(page.read_text("utf-8") for page in PAGES)
    for words in all_commands():
        assert f"plait {words}" in text, words


def test_every_option_of_the_sdk_is_spoken_of() -> None:
    spans = " ".join(code.text for code in codes(ROOT / "docs" / "sdk.md"))
    for name in GenerateOptions.__annotations__:
        assert re.search(rf"\b{name}\b", spans), name


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("plait bake", "no command 'bake'"),
        ("plait node joyn", "no command 'joyn'"),
        ("plait ask --louder hello", "no option --louder"),
        ("plait ask", "missing: prompt"),
        ("plait token revoke A B", "too many"),
        ("plait model quantize NAME --out FILE", "missing: --to"),
        ("plait ask hello --seed", "--seed without a value"),
        ("plait node install -- --joy", "no option --joy"),
        ("plait node keep --joy", "no option --joy"),
        ("plait --joy", "no option --joy"),
        ("KEY=$(docker exec c plait token key made --quiet)", "no command 'made'"),
    ],
)
def test_what_is_wrong_is_found(line: str, wrong: str) -> None:
    (words,) = command_lines(line)
    assert wrong in str(fault(words))


@pytest.mark.parametrize(
    "line",
    [
        "plait --version",
        "plait node join HOST --token plait1.…   # once",
        "plait plan FILE [--model NAME]... [--json]",
        "plait token key create --admin --quiet > admin.key",
        "plait node drain",
        "docker run plait-node-cuda node join HOST:7420 --device cuda",
    ],
)
def test_what_is_right_is_taken(line: str) -> None:
    (words,) = command_lines(line)
    assert fault(words) is None


def test_code_is_found_in_fences_indentations_and_sentences() -> None:
    text = (
        "Say `plait status`.\n\n    plait chat\n\n```\nplait ask \\\n  a\n```\n\n```toml\nno\n```"
    )
    found = [(code.text, code.is_block) for code in codes(ROOT / "README.md", text)]
    assert found == [("plait status", False), ("plait chat", True), ("plait ask a", True)]
