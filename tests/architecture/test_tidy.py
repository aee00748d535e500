"""The style is a test: sizes, broad excepts, comments on protos, words that do not belong."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 400
NOT_OURS = {"LICENSE"}
FUNCTION_LINES_MAX = 60
SOURCE_ROOTS = ("plait", "scheduler", "coordinator", "node")


def tracked(*patterns: str) -> list[Path]:
    """Files that belong to the project, stubs excepted; all of them where no pattern is given."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [ROOT / p for p in listed if not p.startswith("plait/wire/v1/") and (ROOT / p).exists()]


@cache
def sources() -> dict[Path, ast.Module]:
    return {
        path: ast.parse(path.read_text("utf-8"))
        for path in tracked("*.py")
        if path.relative_to(ROOT).parts[0] in SOURCE_ROOTS
    }


def test_no_file_is_longer_than_one_idea() -> None:
    """Of any kind of text we write: code, styles, pages, protos, settings, prose."""
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines())
        for path in tracked()
        if path.name not in NOT_OURS and b"\0" not in path.read_bytes()
    }
    assert {".py", ".css", ".js", ".proto", ".toml", ".yml", ".md"} <= {
        Path(name).suffix for name in lengths
    }, "kinds of files were not looked at"
    assert {p: n for p, n in lengths.items() if n > FILE_LINES_MAX} == {}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_function_is_longer_than_a_screen() -> None:
    long = {}
    for path, tree in sources().items():
        for function in functions(tree):
            # The body: a command's signature may be as long as its list of options.
            length = (function.end_lineno or function.lineno) - function.body[0].lineno + 1
            if length > FUNCTION_LINES_MAX:
                long[f"{path.relative_to(ROOT)}:{function.name}"] = length
    assert long == {}


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path, tree in sources().items()
        if tree.body and ast.get_docstring(tree) is None
    ]
    assert silent == []


def test_broad_excepts_say_why() -> None:
    broad = re.compile(r"^\s*except (Base)?Exception\b(?!.*# \w)|^\s*except\s*:")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if broad.search(line)
    ]
    assert found == [], "say why behind an `except Exception`, or catch what you mean"


@pytest.mark.parametrize("proto", sorted((ROOT / "protos").rglob("*.proto")), ids=lambda p: p.name)
def test_every_field_and_method_of_the_protocol_is_explained(proto: Path) -> None:
    bare = []
    previous = ""
    for number, line in enumerate(proto.read_text("utf-8").splitlines(), 1):
        is_field = re.match(r"\s+(optional |repeated )?[\w.]+ \w+ = \d+;", line)
        is_value = re.match(r"\s+[A-Z0-9_]+ = \d+;", line)
        is_block = re.match(r"(\s*rpc|message|service|enum) ", line)
        explained = "//" in line or previous.strip().startswith("//")
        in_oneof = is_field is not None and line.startswith("    ")
        is_zero = is_value is not None and "_UNSPECIFIED" in line
        if (is_field or is_value or is_block) and not (explained or in_oneof or is_zero):
            bare.append(f"{proto.name}:{number}: {line.strip()}")
        previous = line
    # An enum whose values are plain type names needs no more words than its own.
    assert [b for b in bare if "DTYPE_" not in b] == []


def test_zero_is_unspecified_in_every_enum() -> None:
    for proto in (ROOT / "protos").rglob("*.proto"):
        for body in re.findall(r"enum \w+ \{([^}]*)\}", proto.read_text("utf-8")):
            first = next(line for line in body.splitlines() if "=" in line)
            assert re.search(r"_UNSPECIFIED = 0;", first), first


def test_source_never_prints() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in sources().items()
        if path.relative_to(ROOT).parts[:2] != ("plait", "cli")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert found == []


def test_every_benchmark_writes_its_figures_and_judges_them() -> None:
    """`--json FILE` and `--strict` come with `add_options`, the verdicts with `judge`."""
    mains = [
        text
        for path in (ROOT / "benchmarks").glob("*.py")
        if "ArgumentParser" in (text := path.read_text("utf-8")) and path.name != "_bars.py"
    ]
    assert len(mains) == len(list((ROOT / "benchmarks").glob("[!_]*.py")))
    for text in mains:
        assert "add_options(parser)" in text and "judge(" in text and "options.json" in text
