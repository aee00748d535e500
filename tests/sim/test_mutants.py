"""A green simulator proves nothing by itself: every guard, taken out, must be noticed."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.sim.mutant import Mutant
from tests.sim.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
SEEDS = 4
KILLERS: dict[str, str] = json.loads((Path(__file__).parent / "killers.json").read_text("utf-8"))
"""Which story caught a mutant before: it is told first, so that most hunts end at once."""


def plant(mutant: Mutant, folder: Path) -> None:
    """The package as links to ours, with what is compiled already; one file is written anew."""
    here = ROOT
    for name in Path(mutant.path).parts:
        folder.mkdir()
        if here != ROOT:
            for sibling in here.iterdir():
                if sibling.name != name:
                    (folder / sibling.name).symlink_to(sibling)
        here, folder = here / name, folder / name
    folder.write_text(here.read_text("utf-8").replace(mutant.old, mutant.new), "utf-8")


def hunt(mutants: Sequence[Mutant], home: Path) -> list[str]:
    """Change the line of each one's package, run the stories and the simulator on it."""
    jobs = []
    for index, mutant in enumerate(mutants):
        folder = home / f"m{index:02d}"
        plant(mutant, folder)
        jobs.append((str(folder), KILLERS.get(mutant.name, "")))
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.nest", str(SEEDS)],
        cwd=ROOT,
        input=json.dumps(jobs),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    caught: list[str] = json.loads(done.stdout)
    return caught


def test_every_mutant_changes_exactly_one_place() -> None:
    for mutant in MUTANTS:
        text = (ROOT / mutant.path).read_text("utf-8")
        assert text.count(mutant.old) == 1, (mutant.name, text.count(mutant.old))


@pytest.mark.slow
def test_what_is_not_mutated_survives(tmp_path: Path) -> None:
    """Else whatever the stories object to counts as caught."""
    nothing = Mutant("nothing", "coordinator/core/core.py", "class Core:", "class Core: ")
    assert hunt([nothing], tmp_path) == ["survived"]


@pytest.mark.slow
def test_every_mutant_is_caught(tmp_path: Path) -> None:
    caught = hunt(MUTANTS, tmp_path)
    survivors = [m.name for m, by in zip(MUTANTS, caught, strict=True) if by == "survived"]
    for mutant, by in zip(MUTANTS, caught, strict=True):
        print(f"{mutant.name:45s} {by}")  # noqa: T201 - shown when the test fails
    assert survivors == []
