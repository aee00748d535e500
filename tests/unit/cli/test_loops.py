"""A node's loop: libuv's where it is installed, and asyncio's own elsewhere."""

import ast
import asyncio
import sys
from pathlib import Path

import pytest

from plait.cli import loops


async def _loop_module() -> str:
    await asyncio.sleep(0)
    return type(asyncio.get_running_loop()).__module__


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not made for Windows")
def test_a_node_runs_on_uvloop() -> None:
    assert loops.run(_loop_module()).startswith("uvloop")


def test_without_uvloop_it_runs_on_asyncios_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loops.run(_loop_module()).startswith("asyncio")


def test_nothing_of_a_node_is_measured_by_its_loops_time() -> None:
    """libuv's has whole milliseconds: a neighbour on the same network was 0.000 ms away."""
    root = Path(__file__).parents[3]
    read = [
        f"{file.name}:{node.lineno}"
        for package in ("node", "plait")
        for file in (root / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "time" and _is_loop(node.value)
    ]
    assert read == []


def _is_loop(value: ast.expr) -> bool:
    name = value.func if isinstance(value, ast.Call) else value
    return ast.unparse(name).rpartition(".")[2] in {"loop", "get_running_loop"}
