"""Run by `test_mutants` in its own process: stories first, then seeds, until something objects.

Prints what caught the mutant, or "survived".
"""

import importlib
import sys
from types import ModuleType

from tests.sim.world import World

STORIES = (
    "tests.unit.core.test_machines",
    "tests.unit.core.test_nodes",
    "tests.unit.core.test_planning",
    "tests.unit.core.test_requests",
    "tests.unit.core.test_draining",
    "tests.unit.core.test_outlook",
    "tests.unit.core.test_story",
    "tests.unit.scheduler.test_selection",
    "tests.unit.scheduler.test_verify",
)


def stories(module: ModuleType) -> list[str]:
    """Names of the tests that need no parameters."""
    return [
        name
        for name, value in vars(module).items()
        if name.startswith("test_")
        and getattr(value, "__code__", None) is not None
        and value.__code__.co_argcount == 0
    ]


def main(num_seeds: int) -> str:
    """What caught the mutant."""
    for module_name in STORIES:
        module = importlib.import_module(module_name)
        for name in stories(module):
            try:
                getattr(module, name)()
            except BaseException as error:
                return f"{module_name}.{name}: {type(error).__name__} {error}"[:160]
    for seed in range(num_seeds):
        world = World(seed, num_requests=40, arrivals_ms=30_000)
        try:
            world.run(45_000)
            world.heal_and_finish()
        except BaseException as error:
            return f"seed {seed}, event {world.num_events}: {type(error).__name__} {error}"[:160]
    return "survived"


if __name__ == "__main__":
    sys.stdout.write(main(int(sys.argv[1])) + "\n")
