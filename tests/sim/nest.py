"""Run by `test_mutants` in its own process: hunts each mutant in a fork of it, which has imported
what stories and simulator need beside our own code. That is imported anew, with the mutant in it.

Takes mutants as JSON on standard input, gives what caught each.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.sim import hunt

CPU_S = 15
"""Of computing, five times what the longest hunt takes: beyond it time stands still. A limit by the
clock would say so of any mutant on a busy machine."""
KILLER_CPU_S = 3
"""For one story, which takes a tenth of a second, and for what it imports."""
LIMIT_S = 300
OURS = ("coordinator", "node", "plait", "scheduler", "tests")


@dataclass(frozen=True, slots=True)
class Hunted:
    """A folder with the mutant's package, and the story to tell first."""

    folder: str
    killer: str


def warm_up() -> None:
    """Import it all once, then forget what is ours. The stubs stay, which no mutant touches."""
    hunt.load()
    for name in list(sys.modules):
        if name.split(".", 1)[0] in OURS and not name.startswith("plait.wire.v1"):
            del sys.modules[name]


def hunt_all(all_hunted: Sequence[Hunted], num_seeds: int, *, at_once: int) -> list[str]:
    """What caught each, in order; "survived" where nothing objected."""
    caught = [""] * len(all_hunted)
    running: dict[int, tuple[int, int]] = {}
    waiting = iter(enumerate(all_hunted))
    while True:
        while len(running) < at_once and (job := next(waiting, None)) is not None:
            place, hunted = job
            pid, answer = _start(hunted, num_seeds)
            running[pid] = (place, answer)
        if not running:
            return caught
        pid, status = os.wait()
        place, answer = running.pop(pid)
        caught[place] = _verdict(answer, os.waitstatus_to_exitcode(status))


def _start(hunted: Hunted, num_seeds: int) -> tuple[int, int]:
    """The fork's id, and where its answer is read."""
    answer, told = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        return pid, answer
    resource.setrlimit(resource.RLIMIT_CPU, (KILLER_CPU_S, CPU_S))
    signal.alarm(LIMIT_S)
    sys.path.insert(0, hunted.folder)
    os.chdir(hunted.folder)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        said = hunt.tell_first(hunted.killer)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        os.write(told, (said or hunt.main(num_seeds)).encode()[:4_000])
    except BaseException as error:
        os.write(told, f"{type(error).__name__} {error}".encode()[:4_000])
    os._exit(0)


def _verdict(answer: int, code: int) -> str:
    with os.fdopen(answer, "rb") as told:
        said = told.read().decode("utf-8", "replace").strip()
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "hung: time stood still"
    if code == -signal.SIGALRM:
        return "survived"  # nobody objected
    return said or f"ended with {code}"


def _read() -> Iterator[Hunted]:
    for folder, killer in json.load(sys.stdin):
        yield Hunted(folder, killer)


if __name__ == "__main__":
    told = os.dup(1)  # what is imported and told may print
    os.dup2(2, 1)
    sys.dont_write_bytecode = True
    warm_up()
    results = hunt_all(list(_read()), int(sys.argv[1]), at_once=2)
    os.write(told, json.dumps(results).encode())
