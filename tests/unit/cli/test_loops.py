"""A node's loop: libuv's where it is installed, and asyncio's own elsewhere."""

import asyncio
import sys

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
