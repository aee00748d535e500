"""SIGKILL of the first, the middle and the last node of a chain in the middle of an answer.

SmolLM2 over a chain of three real processes, and spares (one) that each hold the whole model, from
which any stage can be served. A second request keeps the spares busy while the chain is chosen, so
that it is that of three; it leaves before the kill. At token 20 of 64 one node of the chain is
killed; afterwards it is started anew. The pause is the longest time between two tokens from the
kill on; the tokens have to be those of an undisturbed run. P is the time in which the idle chain
runs the prompt and 20 more tokens as a prompt. Where a plan has used the spare for a chain with the
survivors before the dead node was back (a repair waits for half a minute), another network follows.
"""

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks._bars import Bar, add_options, at_least, judge, wide_console, write_figures
from plait.cli.local_network import LocalNetwork, NodePlan
from plait.sdk import Client, Stream
from plait.types import ModelSpec
from tests.kit.disturbed import is_idle
from tests.kit.memory import bytes_for_whole
from tests.kit.network import (
    KV_TOKENS,
    SMOLLM,
    client_of,
    num_serving,
    rejoin_node,
    serving_network,
    smollm,
)
from tests.kit.wait import until_sync

NUM_STAGES: Final = 3
NUM_TOKENS: Final = 64
KILL_AT: Final = 20
SPARES_FREE_AT: Final = 5
SPARE_KV_TOKENS: Final = 4 * KV_TOKENS
"""As much as the chain has: with less, a repair would rather use a spare for a span."""
BUSY_TOKENS: Final = SPARE_KV_TOKENS - 64
"""So much of a spare's KV is taken that no second request has room on it."""
PREFILLS: Final = 5
BACK_S: Final = 120.0
PAUSE_S_MAX: Final = 1.0
ROLES: Final = ("first", "middle", "last")
PROMPT: Final = "The history of the sea begins long before there were people to sail it, and"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One kill. Seconds."""

    role: str
    victim: str
    pause_s: float
    is_identical: bool
    num_attempts: int


def main() -> None:
    """Run all kills, print and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--runs", type=at_least(1), default=10, help="kills of each of the three nodes"
    )
    parser.add_argument(
        "--spares", type=at_least(1), default=1, help="nodes that hold the whole model"
    )
    add_options(parser)
    options = parser.parse_args()
    console = wide_console()
    _, spec = smollm()
    runs: list[Run] = []
    prefills_s: list[float] = []
    while len(runs) < options.runs * len(ROLES):
        with tempfile.TemporaryDirectory(prefix="plait-failover-") as folder:
            _lose_nodes(Path(folder), spec, options, runs, prefills_s)
        console.print(f"so far: {_pauses_ms(runs)}", highlight=False)
    prefill_s = statistics.median(prefills_s)
    console.print(f"P, the prompt and {KILL_AT} tokens run again: {prefill_s * 1e3:.0f} ms")
    by_role = {role: _summary([run for run in runs if run.role == role]) for role in ROLES}
    _show(console, by_role)
    bars = _bars(runs, prefill_s)
    figures = {
        "benchmark": "failover",
        "prefill_s": prefill_s,
        "roles": by_role,
        "runs": [asdict(run) for run in runs],
    }
    write_figures(options.json, figures, bars)
    judge(bars, console, is_strict=options.strict)


def _lose_nodes(
    home: Path,
    spec: ModelSpec,
    options: argparse.Namespace,
    runs: list[Run],
    prefills_s: list[float],
) -> None:
    """One network, and what its clients see of its nodes that die and come back: adds to both."""
    num_nodes = NUM_STAGES + options.spares
    with (
        serving_network(home, SMOLLM, spec, num_stages=NUM_STAGES) as network,
        client_of(network) as client,
    ):
        undisturbed = _ids(client)
        prefills_s += _prefills_s(client, undisturbed)
        for number in range(options.spares):
            memory_bytes = bytes_for_whole(spec, SPARE_KV_TOKENS)
            network.start_node(NodePlan(name=f"spare {number}", memory_bytes=memory_bytes))
        _wait_for(network, num_nodes, "the spares' service")
        for role in (ROLES * options.runs)[len(runs) :]:
            run = _kill(network, client, role, undisturbed, options.spares)
            if run is None:
                return
            runs.append(run)
            _wait_for(network, num_nodes - 1, "the dead node's departure")
            rejoin_node(network, run.victim, spec, num_stages=NUM_STAGES)
            _wait_for(network, num_nodes, "its return")


def _wait_for(network: LocalNetwork, num_nodes: int, what: str) -> None:
    network.wait(lambda view: num_serving(view) == num_nodes, timeout_s=BACK_S, what=what)
    until_sync(lambda: is_idle(network), timeout_s=BACK_S, what="all KV given back")


def _ids(client: Client) -> tuple[int, ...]:
    answer = client.generate(PROMPT, max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    return answer.token_ids


def _prefills_s(client: Client, ids: tuple[int, ...]) -> list[float]:
    """Times to a first token behind the prompt and what was generated by the kill."""
    text = PROMPT + "".join(" sea" for _ in ids[:KILL_AT])
    took: list[float] = []
    for number in range(PREFILLS):
        began_s = time.perf_counter()
        next(iter(client.stream(f"{number} {text}", max_tokens=1, temperature=0.0)))
        took.append(time.perf_counter() - began_s)
    return took


def _kill(
    network: LocalNetwork, client: Client, role: str, undisturbed: tuple[int, ...], num_spares: int
) -> Run | None:
    """One answer, and the death of one of its nodes. None: it does not come from a chain of three,
    or nobody else holds it all."""
    if _num_whole(network) < num_spares:
        return None
    busy = [_busy(client) for _ in range(num_spares)]
    stream = client.stream(PROMPT, max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    ids: list[int] = []
    killed, last_s, pause_s = "", time.perf_counter(), 0.0
    for delta in stream:
        now_s = time.perf_counter()
        ids += delta.token_ids
        if len(ids) >= SPARES_FREE_AT:
            while busy:
                busy.pop().close()
        if killed:
            pause_s = max(pause_s, now_s - last_s)
        elif len(ids) >= KILL_AT:
            if len(stream.route) != NUM_STAGES:
                stream.close()
                return None
            killed = stream.route[ROLES.index(role)].display_name
            os.kill(network.nodes[killed].pid, signal.SIGKILL)
            now_s = time.perf_counter()
        last_s = now_s
    network.children.forget(network.nodes.pop(killed))
    return Run(
        role=role,
        victim=killed,
        pause_s=pause_s,
        is_identical=tuple(ids) == undisturbed,
        num_attempts=stream.result.num_attempts,
    )


def _busy(client: Client) -> Stream:
    """A request on a spare, which has all its KV, with its first token."""
    stream = client.stream(PROMPT, max_tokens=BUSY_TOKENS, temperature=0.0, ignore_eos=True)
    next(iter(stream))
    if len(stream.route) != 1:
        stream.close()  # it found the chain cheaper, and so will the next one
    return stream


def _num_whole(network: LocalNetwork) -> int:
    """Nodes that hold the whole model."""
    view = network.view()
    return sum(node.span == (0, view.models[0].num_layers) for node in view.nodes)


def _pauses_ms(runs: list[Run]) -> str:
    """For people who wait."""
    return ", ".join(f"{run.role} {run.pause_s * 1e3:.0f} ms" for run in runs)


def _summary(runs: list[Run]) -> dict[str, float]:
    """Of the kills of one role."""
    pauses_s = [run.pause_s for run in runs]
    return {
        "kills": len(runs),
        "identical": sum(run.is_identical for run in runs),
        "pause_s_median": statistics.median(pauses_s),
        "pause_s_max": max(pauses_s),
    }


def _show(console: Console, by_role: Mapping[str, Mapping[str, float]]) -> None:
    table = Table("killed", "kills", "identical", "pause ms, median", "most")
    for role, found in by_role.items():
        pauses = (f"{1e3 * found[name]:.0f}" for name in ("pause_s_median", "pause_s_max"))
        table.add_row(role, f"{found['kills']}", f"{found['identical']}", *pauses)
    console.print(table)


def _bars(runs: list[Run], prefill_s: float) -> list[Bar]:
    changed = sum(not run.is_identical for run in runs)
    worst = max(run.pause_s for run in runs)
    return [
        Bar(name="answers that changed", measured=changed, most=0),
        Bar(name="longest pause", measured=worst, most=PAUSE_S_MAX + prefill_s, unit="s"),
    ]
