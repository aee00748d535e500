"""Fleets by the hundred: `python -m tests.sim.seeds --seeds 1000 --nodes 50 50`. By hand; CI runs a
few.

Says a line for each seed and stops at the first that breaks a promise, with the command that
replays it. With `--log` it goes on where an earlier run of the same code and settings ended; runs
of other ranges may write the same file at the same time.
"""

import argparse
import hashlib
import json
import multiprocessing
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path

from tests.sim.seed_run import Settings, Verdict, run_seed

ROOT = Path(__file__).parents[2]
PACKAGES = ("coordinator", "node", "plait", "scheduler", "tests/sim", "tests/kit")


def code_digest() -> str:
    """Names the code that a seed has run on."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def main() -> int:
    """1 where a seed has broken a promise."""
    asked = _parser().parse_args()
    low, high = asked.nodes
    settings = Settings(
        nodes=(low, high), duration_ms=int(asked.minutes * 60_000), num_requests=asked.requests
    )
    code = code_digest()
    known = _done(asked.log, code, settings) if asked.log else frozenset()
    seeds = [s for s in range(asked.first, asked.first + asked.seeds) if s not in known]
    if known:
        _say(f"{asked.seeds - len(seeds)} of {asked.seeds} seeds are in {asked.log}")
    total: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for verdict in _run(seeds, settings, asked.jobs):
        total.update(seeds=1, broken=int(not verdict.is_kept), cpu_ms=int(verdict.cpu_s * 1e3))
        outcomes.update(verdict.outcomes)
        _say(verdict.line)
        if asked.log:
            _write(asked.log, code, settings, verdict)
        if not verdict.is_kept:
            _say(f"replay it with: {_replay(verdict.seed, settings)}")
            if not asked.keep_going:
                break
    _say(
        f"{total['seeds']} seeds, {total['broken']} broken, {total['cpu_ms'] / 1e3:.0f} s of "
        f"computing, code {code}: {dict(outcomes)}"
    )
    return 1 if total["broken"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--nodes", type=int, nargs=2, default=(50, 500), help="least and most")
    parser.add_argument("--minutes", type=float, default=10.0, help="of virtual time")
    parser.add_argument("--requests", type=int, default=60, help="of each fleet")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--log", type=Path, help="JSON lines of what each seed came to")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    return parser


def _run(seeds: list[int], settings: Settings, num_jobs: int) -> Iterator[Verdict]:
    """As they end. Who stops asking lets those end that have begun."""
    run = partial(run_seed, settings=settings)
    if num_jobs == 1:
        yield from map(run, seeds)
        return
    ahead = iter(seeds)
    with ProcessPoolExecutor(num_jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run, seed) for seed in islice(ahead, num_jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
            running |= {pool.submit(run, seed) for seed in islice(ahead, len(done))}


def _replay(seed: int, settings: Settings) -> str:
    low, high = settings.nodes
    words = ["python", "-m", "tests.sim.seeds", "--first", seed, "--seeds", 1, "--nodes", low, high]
    words += ["--minutes", settings.duration_ms / 60_000, "--requests", settings.num_requests]
    return shlex.join(map(str, words))


def _done(log: Path, code: str, settings: Settings) -> frozenset[int]:
    """Seeds that kept their promises already."""
    if not log.exists():
        return frozenset()
    wanted = {"code": code, **json.loads(json.dumps(asdict(settings)))}
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    return frozenset(
        row["seed"]
        for row in rows
        if row["verdict"] == "kept" and all(row[name] == wanted[name] for name in wanted)
    )


def _write(log: Path, code: str, settings: Settings, verdict: Verdict) -> None:
    """One line in one write, so that runs may share a file."""
    line = json.dumps({**asdict(verdict), **asdict(settings), "code": code})
    with log.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
