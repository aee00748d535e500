"""A green simulator proves nothing by itself: every guard, taken out, must be noticed."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.sim.killers import KILLERS
from tests.sim.mutant import Mutant
from tests.sim.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
SEEDS = 4


def hunt(mutants: Sequence[Mutant], home: Path) -> list[str]:
    """Copy each one's package, change the line, run the stories and the simulator on it."""
    jobs = []
    for index, mutant in enumerate(mutants):
        package = mutant.path.split("/", 1)[0]
        folder = home / f"m{index:02d}"
        # As links, with what is compiled already; one file is written anew.
        shutil.copytree(ROOT / package, folder / package, copy_function=os.symlink)
        target = folder / mutant.path
        text = target.read_text("utf-8").replace(mutant.old, mutant.new)
        target.unlink()
        target.write_text(text, "utf-8")
        first = KILLERS.get(mutant.name, f"test_{Path(mutant.path).stem}")
        jobs.append((str(folder), first))
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
