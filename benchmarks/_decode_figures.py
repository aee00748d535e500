"""Decode rates on one machine: transformers and plait's engine in one process, plait over nodes.

All fp32 and greedy, on as many threads each; runs are interleaved and medians taken, because a
machine's speed drifts. Run it as `python benchmarks/decode.py [--strict] [--json FILE]`.
"""

import argparse
import statistics
from collections.abc import Sequence
from itertools import chain, cycle

import torch
from rich.console import Console
from rich.table import Table

from benchmarks._bars import Bar, add_options, at_least, judge, wide_console, write_figures
from benchmarks._contenders import Contender, EngineContender, TransformersContender
from benchmarks._ring import RingContender
from plait.cli import loops
from plait.models import load_spec, pull, resolve

NUM_REQUESTS = (1, 4)
PROMPT = [1, 4093, 198, 22045, 288, 253, 28, 3056, 338, 597, 253, 5356, 5646, 11173, 3365, 30]

Rates = dict[str, dict[int, list[list[float]]]]
"""Tokens per second of each run of each round, by contender and number of requests."""

RUNS_OF_OURS = 3
"""Of a round: a run takes a second, in which the machine may just have been slow."""

BARS = {
    "engine / transformers, 1 request": 1.15,
    "engine, 4 requests / 1 request": 2.3,
    "ring / engine, 1 request": 0.7,
    "ring, 4 requests / 1 request": 2.3,
}
"""The least each ratio should be."""


async def start_contenders(model_name: str, num_threads: int, num_nodes: int) -> list[Contender]:
    """Everyone who takes part, loaded."""
    source = pull(resolve(model_name))
    contenders: list[Contender] = []
    if num_nodes > 0:  # first: nodes measure themselves while the machine is quiet
        spec = load_spec(source)
        contenders.append(RingContender.start(spec, num_nodes=num_nodes, num_threads=num_threads))
    contenders.insert(0, await EngineContender.start(source, num_threads=num_threads))
    contenders.insert(0, TransformersContender(model_name, num_threads=num_threads))
    return contenders


async def measure(contenders: Sequence[Contender], *, num_tokens: int, repeats: int) -> Rates:
    """Interleaved runs. Raises RuntimeError where a contender draws other ids than the first."""
    rates: Rates = {
        contender.name: {count: [[] for _ in range(repeats)] for count in NUM_REQUESTS}
        for contender in contenders
    }
    expected: list[int] | None = None
    for repeat in range(repeats + 1):  # the first round warms up
        for contender, count in _turns(contenders):
            decoded = await contender.decode([PROMPT] * count, num_tokens)
            expected = expected or decoded.token_ids[0]
            if any(ids != expected for ids in decoded.token_ids):
                raise RuntimeError(f"{contender.name} drew other tokens: {decoded.token_ids}")
            if repeat > 0:
                rates[contender.name][count][repeat - 1].append(decoded.tokens_per_s)
    return rates


def _turns(contenders: Sequence[Contender]) -> list[tuple[Contender, int]]:
    """Those that are compared are neighbours: plait's own with one request and with several, time
    and again; transformers, which takes longest, before and after them."""
    slowest, *ours = contenders
    few, many = NUM_REQUESTS
    some = [(each, count) for count in NUM_REQUESTS for each in ours]
    return [(slowest, few), *some * RUNS_OF_OURS, (slowest, many)]


def medians(rates: Rates) -> dict[str, dict[int, float]]:
    """Median rates over all runs."""
    return {
        name: {count: statistics.median(chain(*rounds)) for count, rounds in by_count.items()}
        for name, by_count in rates.items()
    }


def ratios(rates: Rates) -> dict[str, float]:
    """What the bars are about: medians over the ratios of runs that are neighbours in time, and so
    share what else the machine was doing; of transformers' runs all of the same round are."""
    transformers, engine, *ring = rates.values()
    one, four = NUM_REQUESTS
    found = {
        "engine / transformers, 1 request": _ratio(engine[one], transformers[one]),
        "engine, 4 requests / 1 request": _ratio(engine[four], engine[one]),
    }
    if ring:
        found["ring / engine, 1 request"] = _ratio(ring[0][one], engine[one])
        found["ring, 4 requests / 1 request"] = _ratio(ring[0][four], ring[0][one])
    return found


def _ratio(numerators: Sequence[Sequence[float]], denominators: Sequence[Sequence[float]]) -> float:
    return statistics.median(
        above / below
        for of_round, others in zip(numerators, denominators, strict=True)
        for above, below in zip(of_round, cycle(others), strict=False)
    )


def bars_of(found: dict[str, float]) -> list[Bar]:
    """Those of the ratios that were measured."""
    return [Bar(name=name, measured=value, least=BARS[name]) for name, value in found.items()]


def show(rates: Rates, console: Console) -> None:
    """Print the rates."""
    table = Table("tokens/s, fp32, greedy", *(f"{count} request(s)" for count in NUM_REQUESTS))
    for name, by_count in medians(rates).items():
        table.add_row(name, *(f"{by_count[count]:.1f}" for count in NUM_REQUESTS))
    console.print(table)


async def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    contenders = await start_contenders(options.model, options.threads, options.nodes)
    try:
        rates = await measure(contenders, num_tokens=options.tokens, repeats=options.repeats)
    finally:
        for contender in contenders:
            await contender.close()
    found = ratios(rates)
    console = wide_console()
    show(rates, console)
    bars = bars_of(found)
    figures = {
        "benchmark": "decode",
        "model": options.model,
        "num_tokens": options.tokens,
        "num_threads": options.threads,
        "num_nodes": options.nodes,
        "repeats": options.repeats,
        "tokens_per_s": medians(rates),
        "tokens_per_s_by_round": rates,
        "ratios": found,
    }
    write_figures(options.json, figures, bars)
    judge(bars, console, is_strict=options.strict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a catalogue name")
    parser.add_argument("--tokens", type=at_least(2), default=64, help="generated by each request")
    parser.add_argument("--repeats", type=at_least(1), default=5, help="measured rounds")
    parser.add_argument("--nodes", type=int, default=3, help="of the ring; 0 leaves it out")
    parser.add_argument(
        "--threads", type=at_least(1), default=1, help="torch threads of each contender"
    )
    add_options(parser)
    loops.run(run(parser.parse_args()))  # a node's loop


if __name__ == "__main__":
    main()
