"""How a mutant is hunted (`tests.sim.nest`): stories first, then seeds, until something objects.

The story that caught the mutant before comes first.
"""

import importlib
import inspect
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

STORIES = (
    "tests.unit.core.test_machines",
    "tests.unit.core.test_nodes",
    "tests.unit.core.test_planning",
    "tests.unit.core.test_requests",
    "tests.unit.core.test_draining",
    "tests.unit.core.test_resuming",
    "tests.unit.core.test_repair",
    "tests.unit.core.test_outlook",
    "tests.unit.core.test_story",
    "tests.unit.scheduler.test_selection",
    "tests.unit.scheduler.test_verify",
    "tests.unit.node.test_core_opening",
    "tests.unit.node.test_core_rows",
    "tests.unit.node.test_core_ends",
    "tests.unit.node.test_core_kept",
    "tests.unit.node.test_core_lifecycle",
    "tests.unit.shell.test_journal",
)


Story = Callable[..., object]


def stories(module: ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    """Tests of a module that need nothing but what they are parametrised with, or a folder."""
    for name, value in vars(module).items():
        if not name.startswith("test_") or not inspect.isfunction(value):
            continue
        for given in _cases(value):
            missing = set(inspect.signature(value).parameters) - set(given)
            if not inspect.iscoroutinefunction(value) and missing <= {"tmp_path"}:
                yield name, partial(_tell, value, given, needs_folder=bool(missing))


def _cases(story: Story) -> list[dict[str, object]]:
    """What `parametrize` hands in, one after the other."""
    marks = [m for m in getattr(story, "pytestmark", ()) if m.name == "parametrize"]
    if len(marks) != 1:
        return [{}]
    names, cases = marks[0].args[:2]
    words = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    rows = [case.values if hasattr(case, "marks") else case for case in cases]
    return [dict(zip(words, row if len(words) > 1 else _alone(row), strict=True)) for row in rows]


def _alone(row: object) -> tuple[object, ...]:
    return row if isinstance(row, tuple) and len(row) == 1 else (row,)


def _tell(story: Story, given: dict[str, object], *, needs_folder: bool) -> None:
    if not needs_folder:
        story(**given)
        return
    with tempfile.TemporaryDirectory() as folder:
        story(**given, tmp_path=Path(folder))


def load() -> None:
    """All that may be told."""
    for module_name in (*STORIES, "tests.sim.world"):
        importlib.import_module(module_name)


def _object(module_name: str, *, only: str = "") -> str:
    """What the stories of a module object to, or `only` the one of that name; empty if nothing."""
    for name, tell in stories(importlib.import_module(module_name)):
        if name == only or not only:
            try:
                tell()
            except BaseException as error:
                return f"{module_name}.{name}: {type(error).__name__} {error}"[:160]
    return ""


def tell_first(killer: str) -> str:
    """What one story objects to, which is given as `test_module.test_story`; empty if nothing."""
    module, _, story = killer.partition(".")
    names = [name for name in STORIES if name.endswith(f".{module}")]
    return next((said for name in names if (said := _object(name, only=story))), "")


def main(num_seeds: int) -> str:
    """What caught the mutant, or "survived"."""
    for module_name in STORIES:
        if said := _object(module_name):
            return said
    from tests.sim.world import World  # noqa: PLC0415 - most mutants never come so far

    for seed in range(num_seeds):
        world = World(seed, num_requests=40, arrivals_ms=30_000)
        try:
            world.run(45_000)
            world.heal_and_finish()
        except BaseException as error:
            return f"seed {seed}, event {world.num_events}: {type(error).__name__} {error}"[:160]
    return "survived"
