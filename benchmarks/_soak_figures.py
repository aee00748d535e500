"""Random faults against real processes for a long time, while SDK clients ask without a pause.

Two chains of two nodes of a tiny model. Faults, one at a time, each until the network is whole
again, so that a route exists throughout: nodes are killed, frozen, slowed and stopped, the
coordinator is killed and stopped; clients leave half-way. Every other request has to end with the
tokens of an undisturbed run. In the second half the coordinator and two of the nodes are
not ended any more: what they hold (memory, threads, descriptors) must not grow by more than 5 %
after the warm-up.
"""

import argparse
import math
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks._bars import Bar, add_options, judge, wide_console, write_figures
from benchmarks._soak_load import Load
from benchmarks._soak_samples import Growth, Sampler
from benchmarks._soak_tasks import num_tasks
from plait.cli.children import Child
from plait.cli.local_network import LocalNetwork
from plait.types import ModelSpec
from tests.kit.chaos import frozen, kill, slowed
from tests.kit.network import (
    kill_and_restart_coordinator,
    num_serving,
    rejoin_node,
    serving_network,
)
from tests.kit.tiny_model import write_tiny_model

NUM_STAGES: Final = 2
NUM_NODES: Final = 2 * NUM_STAGES
WHOLE_S: Final = 120.0
LEAVE_S: Final = 12.0
QUIET_S: Final = (0.5, 4.0)
FROZEN_S: Final = (1.0, 8.0)
GROWTH_PERCENT_MAX: Final = 5.0
SPARES: Final = ("node 3", "node 4")
"""Those that are ended in the second half too."""


class Chaos:
    """Draws faults and does them."""

    def __init__(self, network: LocalNetwork, spec: ModelSpec, rng: random.Random) -> None:
        self._network = network
        self._spec = spec
        self._rng = rng
        self.done: Counter[str] = Counter()

    def strike(self, *, spares_alone: bool) -> None:
        """One fault, until all nodes serve again. `spares_alone`: nobody else is ended."""
        ending = SPARES if spares_alone else tuple(self._network.nodes)
        faults: dict[str, Callable[[], None]] = {
            "node killed": lambda: self._kill(self._rng.choice(ending)),
            "node stopped": lambda: self._stop(self._rng.choice(ending)),
            "node frozen": lambda: self._freeze(self._rng.choice(tuple(self._network.nodes))),
            "node slowed": lambda: self._slow(self._rng.choice(tuple(self._network.nodes))),
        }
        if not spares_alone:
            faults["coordinator killed"] = lambda: self._restart(signal.SIGKILL)
            faults["coordinator stopped"] = lambda: self._restart(signal.SIGTERM)
        name = self._rng.choice(tuple(faults))
        faults[name]()
        self.done[name] += 1
        self._network.wait(
            lambda view: num_serving(view) == NUM_NODES, timeout_s=WHOLE_S, what=f"whole: {name}"
        )

    def _kill(self, name: str) -> None:
        kill(self._network.nodes[name].pid)
        self._back(name, self._network.nodes.pop(name))

    def _stop(self, name: str) -> None:
        child = self._network.nodes.pop(name)
        child.process.terminate()
        child.process.wait(LEAVE_S)
        self._back(name, child)

    def _back(self, name: str, child: Child) -> None:
        self._network.children.forget(child)
        rejoin_node(self._network, name, self._spec, num_stages=NUM_STAGES)

    def _freeze(self, name: str) -> None:
        with frozen(self._network.nodes[name].pid):
            time.sleep(self._rng.uniform(*FROZEN_S))

    def _slow(self, name: str) -> None:
        with slowed(self._network.nodes[name].pid, factor=10):
            time.sleep(self._rng.uniform(*FROZEN_S))

    def _restart(self, how: signal.Signals) -> None:
        kill_and_restart_coordinator(self._network, str(self._network.home / "tiny"), how)


def main() -> None:
    """Run for as long as was asked, print and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    add_options(parser)
    options = parser.parse_args()
    console = wide_console()
    with tempfile.TemporaryDirectory(prefix="plait-soak-") as folder:
        home = Path(folder)
        spec = write_tiny_model(home / "tiny")
        with (
            serving_network(
                home, str(home / "tiny"), spec, num_stages=NUM_STAGES, num_spares=NUM_STAGES
            ) as network,
            Sampler(lambda: _processes(network), lambda name: num_tasks(network, name)) as sampler,
            Load(network, options.seed) as load,
        ):
            chaos = Chaos(network, spec, random.Random(options.seed))
            _soak(chaos, load, minutes=options.minutes, console=console)
        growths = [growth for growth in sampler.growths() if growth.name not in SPARES]
    _report(console, chaos, load, growths)
    bars = _bars(load, growths)
    figures = {
        "benchmark": "soak",
        "faults": dict(chaos.done),
        "answers": asdict(load.answers),
        "growths": [asdict(growth) for growth in growths],
    }
    write_figures(options.json, figures, bars)
    judge(bars, console, is_strict=options.strict)


def _processes(network: LocalNetwork) -> Mapping[str, int]:
    with suppress(RuntimeError):  # nodes come and go meanwhile; the next sample has them
        nodes = {name: child.pid for name, child in network.nodes.items()}
        return {"coordinator": network.coordinator.pid, **nodes}
    return {}


def _soak(chaos: Chaos, load: Load, *, minutes: float, console: Console) -> None:
    began_s = time.perf_counter()
    rng = random.Random(minutes)
    said_s = began_s
    while (passed_s := time.perf_counter() - began_s) < minutes * 60:
        chaos.strike(spares_alone=passed_s > minutes * 60 * 0.4)
        time.sleep(rng.uniform(*QUIET_S))
        if time.perf_counter() - said_s > 30:
            said_s = time.perf_counter()
            answers = load.answers
            console.print(
                f"{said_s - began_s:.0f} s: {chaos.done.total()} faults, "
                f"{answers.num_right} right, {len(answers.failed)} failed, "
                f"{len(answers.changed)} changed",
                highlight=False,
            )


def _report(console: Console, chaos: Chaos, load: Load, growths: list[Growth]) -> None:
    answers = load.answers
    table = Table("fault", "times")
    for name, times in sorted(chaos.done.items()):
        table.add_row(name, str(times))
    console.print(table)
    table = Table("right", "on several chains", "longest s", "left", "changed", "failed")
    table.add_row(
        str(answers.num_right),
        str(answers.num_resumed),
        f"{answers.longest_s:.1f}",
        str(answers.num_left),
        str(len(answers.changed)),
        str(len(answers.failed)),
    )
    console.print(table)
    for trouble in [*answers.changed[:5], *answers.failed[:5]]:
        console.print(f"  {trouble}", highlight=False)
    table = Table("process", "samples", "MiB", "threads", "descriptors", "tasks", title="growth")
    for one in growths:
        table.add_row(
            one.name,
            str(one.num_samples),
            f"{one.rss_mib:.0f} ({one.rss_percent:+.1f} %)",
            f"{one.num_threads:.0f} ({one.threads_percent:+.1f} %)",
            f"{one.num_descriptors:.0f} ({one.descriptors_percent:+.1f} %)",
            f"{one.num_tasks:.0f} ({one.tasks_percent:+.1f} %)",
        )
    console.print(table)


def _bars(load: Load, growths: list[Growth]) -> list[Bar]:
    answers = load.answers
    bars = [
        Bar(name="requests that failed", measured=len(answers.failed), most=0),
        Bar(name="answers that changed", measured=len(answers.changed), most=0),
    ]
    for what in ("rss", "threads", "descriptors", "tasks"):
        grown = [getattr(growth, f"{what}_percent") for growth in growths]
        # What nobody measured does not hold: a soak too short for its samples, figures not told.
        worst = math.nan if not grown or any(map(math.isnan, grown)) else max(grown)
        bars.append(
            Bar(name=f"growth of {what}", measured=worst, most=GROWTH_PERCENT_MAX, unit="%")
        )
    return bars
