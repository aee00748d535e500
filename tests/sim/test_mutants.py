"""A green simulator proves nothing by itself: every guard, taken out, must be noticed."""

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.sim.killers import KILLERS
from tests.sim.mutant import Mutant
from tests.sim.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
SEEDS = 4
LIMIT_S = 300


def hunt(mutant: Mutant, folder: Path) -> str:
    """Copy the package, change the line, run the stories and the simulator on it."""
    first = KILLERS.get(mutant.name, f"test_{Path(mutant.path).stem}")
    package = mutant.path.split("/", 1)[0]
    shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    target = folder / mutant.path
    target.write_text(target.read_text("utf-8").replace(mutant.old, mutant.new), "utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.sim.hunt", str(SEEDS), first],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "survived"  # nobody objected
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return "hung: time stood still"
    return (done.stdout.strip() or done.stderr.strip()[-300:]).splitlines()[-1]


def test_every_mutant_changes_exactly_one_place() -> None:
    for mutant in MUTANTS:
        text = (ROOT / mutant.path).read_text("utf-8")
        assert text.count(mutant.old) == 1, (mutant.name, text.count(mutant.old))


@pytest.mark.slow
def test_what_is_not_mutated_survives(tmp_path: Path) -> None:
    """Else whatever the stories object to counts as caught."""
    assert hunt(
        Mutant("nothing", "coordinator/core/core.py", "class Core:", "class Core:"), tmp_path
    ) == ("survived")


@pytest.mark.slow
def test_every_mutant_is_caught(tmp_path: Path) -> None:
    folders = [tmp_path / f"m{index:02d}" for index in range(len(MUTANTS))]
    with ThreadPoolExecutor(2) as pool:
        caught = list(pool.map(hunt, MUTANTS, folders))
    survivors = [m.name for m, by in zip(MUTANTS, caught, strict=True) if by == "survived"]
    for mutant, by in zip(MUTANTS, caught, strict=True):
        print(f"{mutant.name:45s} {by}")  # noqa: T201 - shown when the test fails
    assert survivors == []
