"""What a ring of three gives when each of its links is one of the Internet's.

A token of one request needs one trip: three hops and the steps of three stages, which together are
one step of the whole model. So 1 / (3 x delay + step) is the most that a ring can give to one
request without guessing tokens; `_wan_guesses` tells what it gives with guesses. While a frame
travels, the stages are free for other requests.

Rounds are interleaved and ratios taken within a round, since a machine's speed drifts.
"""

import argparse
import asyncio
import statistics
from dataclasses import asdict, dataclass, field
from typing import Final

import torch
from rich.console import Console
from rich.table import Table

from benchmarks._bars import Bar, add_options, at_least, judge, wide_console, write_figures
from benchmarks._contenders import EngineContender
from benchmarks._far_ring import FarRing, together_per_s
from benchmarks._wan_drafting import (
    Drafted,
    draft_bars,
    draft_bytes,
    measure_drafts,
    show_drafts,
)
from benchmarks._wan_guesses import Guessed, guess_bars, measure_guesses, show_guesses
from plait.models import load_spec, pull, resolve
from plait.types import ModelSpec, WeightFormat
from tests.kit.proxy_pacing import Conditions

PROMPT: Final = [
    *(1, 4093, 198, 22045, 288, 253, 28, 3056, 338, 597, 253, 5356, 5646, 11173, 3365, 30)
]
NUM_TOGETHER: Final = 4
LONG_TOKENS: Final = 512
MBIT: Final = 125_000.0
ONE_BAR: Final = 0.85
TOGETHER_BAR: Final = 3.5
SETTLE_S: Final = 1.5


@dataclass(slots=True)
class Round:
    """One round's figures. Times in ms, rates in tokens/s."""

    step_ms: float
    one_per_s: float
    together_per_s: float
    limit_per_s: float
    ttft_ms: float

    @property
    def one_share(self) -> float:
        return self.one_per_s / self.limit_per_s

    @property
    def together_share(self) -> float:
        return self.together_per_s / self.one_per_s


@dataclass(slots=True)
class LongPrompt:
    """A prompt of LONG_TOKENS over slow links. `parts_ms` is what its parts take one after the
    other: the whole model's prefill, the transfers of all hops, and the delays."""

    ttft_ms: list[float] = field(default_factory=list)
    parts_ms: list[float] = field(default_factory=list)
    hop_bytes: int = 0

    @property
    def share(self) -> float:
        """Below 1, stages and links have worked at the same time."""
        pairs = zip(self.ttft_ms, self.parts_ms, strict=True)
        return statistics.median(ttft / parts for ttft, parts in pairs)


async def decode_round(
    engine: EngineContender, ring: FarRing, options: argparse.Namespace
) -> Round:
    """One process, then one request over the ring, then several at once.

    Raises RuntimeError where the ring draws other tokens than one process.
    """
    whole = await engine.decode([PROMPT], options.tokens)
    (one,) = await ring.ask([PROMPT], options.tokens)
    together = await ring.ask([PROMPT] * NUM_TOGETHER, options.tokens)
    if any(answer.token_ids != whole.token_ids[0] for answer in (one, *together)):
        raise RuntimeError("the ring drew other tokens than one process")
    step_ms = 1e3 / whole.tokens_per_s
    return Round(
        step_ms,
        together_per_s([one]),
        together_per_s(together),
        1e3 / (options.nodes * options.delay_ms + step_ms),
        1e3 * one.ttft_s,
    )


async def long_round(
    engine: EngineContender, ring: FarRing, options: argparse.Namespace, found: LongPrompt
) -> None:
    """A long prompt, alone, over links of `--up-mbit`."""
    number = len(found.ttft_ms)
    prompt = [3 + (7 * index + 13 * number) % 997 for index in range(LONG_TOKENS)]
    whole_s = await engine.prefill_s(prompt)
    before = ring.num_bytes
    (answer,) = await ring.ask([prompt], 1)
    found.hop_bytes = ring.num_bytes - before
    travel_ms = 1e3 * found.hop_bytes / (options.up_mbit * MBIT)
    delays_ms = (options.nodes - 1) * options.delay_ms
    found.ttft_ms.append(1e3 * answer.ttft_s)
    found.parts_ms.append(1e3 * whole_s + travel_ms + delays_ms)


async def measure(
    engine: EngineContender, ring: FarRing, options: argparse.Namespace
) -> tuple[list[Round], LongPrompt, dict[str, Guessed]]:
    far = Conditions(delay_ms=options.delay_ms)
    slow = Conditions(delay_ms=options.delay_ms, bytes_per_s=options.up_mbit * MBIT)
    rounds: list[Round] = []
    long_prompt = LongPrompt()
    ring.set_links(far)
    await asyncio.sleep(SETTLE_S)
    await ring.ask([PROMPT], 8)  # streams and caches
    for _ in range(options.repeats):
        rounds.append(await decode_round(engine, ring, options))
    guessed = await measure_guesses(ring, options.guess_tokens, options.repeats)
    ring.set_links(slow)
    for _ in range(options.repeats):
        await long_round(engine, ring, options, long_prompt)
    return rounds, long_prompt, guessed


def bars_of(rounds: list[Round], long_prompt: LongPrompt) -> list[Bar]:
    return [
        Bar(
            name="one request / limit of a ring",
            measured=statistics.median(r.one_share for r in rounds),
            least=ONE_BAR,
        ),
        Bar(
            name=f"{NUM_TOGETHER} requests / 1 request",
            measured=statistics.median(r.together_share for r in rounds),
            least=TOGETHER_BAR,
        ),
        Bar(
            name=f"first token of {LONG_TOKENS} over slow links / its parts one by one",
            measured=long_prompt.share,
            most=1.0,
        ),
    ]


def show(rounds: list[Round], long_prompt: LongPrompt, console: Console) -> None:
    table = Table(
        "round", "step, one process ms", "limit tok/s", "1 request", "4 requests", "TTFT ms"
    )
    for number, r in enumerate(rounds, 1):
        figures = (r.step_ms, r.limit_per_s, r.one_per_s, r.together_per_s, r.ttft_ms)
        table.add_row(str(number), *(f"{figure:.1f}" for figure in figures))
    console.print(table)
    console.print(
        f"prompt of {LONG_TOKENS}: first token after {statistics.median(long_prompt.ttft_ms):.0f} "
        f"ms; its parts one by one: {statistics.median(long_prompt.parts_ms):.0f} ms; "
        f"{long_prompt.hop_bytes / 1e6:.2f} MB between nodes"
    )


async def measure_drafting(
    spec: ModelSpec, options: argparse.Namespace
) -> tuple[dict[str, Drafted], str]:
    """A ring of its own, whose nodes have a draft model; what was guessed in words."""
    if not options.draft_model:
        return {}, ""
    ring = FarRing.start(
        spec,
        num_nodes=options.nodes,
        wire_dtype=options.wire_dtype,
        draft_model=options.draft_model,
        draft_bytes=draft_bytes(spec),
    )
    try:
        ring.set_links(Conditions(delay_ms=options.delay_ms))
        await asyncio.sleep(SETTLE_S)
        await ring.ask([PROMPT], 8)
        drafted = await measure_drafts(ring, options)
        await asyncio.sleep(SETTLE_S)  # a heartbeat
        totals = ring.guesses()
    finally:
        await ring.close()
    words = (
        f"draft model: {totals.accepted_by_model} of {totals.guessed_by_model} guesses right; all: "
        f"{totals.accepted} of {totals.guessed} in {totals.trips} trips"
    )
    return drafted, words


async def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    source = pull(resolve(options.model))
    spec: ModelSpec = load_spec(source)
    ring = FarRing.start(spec, num_nodes=options.nodes, wire_dtype=options.wire_dtype)
    try:
        engine = await EngineContender.start(source, num_threads=1, weight_format=WeightFormat.FP16)
        try:
            rounds, long_prompt, guessed = await measure(engine, ring, options)
        finally:
            await engine.close()
    finally:
        await ring.close()
    drafted, totals = await measure_drafting(spec, options)
    console = wide_console()
    show(rounds, long_prompt, console)
    show_guesses(guessed, console)
    show_drafts(drafted, totals, console)
    bars = bars_of(rounds, long_prompt) + guess_bars(guessed) + draft_bars(drafted)
    settings = {key: value for key, value in vars(options).items() if key != "json"}
    figures = {
        "benchmark": "wan",
        "settings": settings,
        "rounds": [asdict(r) for r in rounds],
        "long_prompt": asdict(long_prompt),
        "guesses": {name: {**asdict(one), "gain": one.gain} for name, one in guessed.items()},
        "drafts": {name: {**asdict(one), "gain": one.gain} for name, one in drafted.items()},
        "drafted": totals,
    }
    write_figures(options.json, figures, bars)
    judge(bars, console, is_strict=options.strict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a catalogue name")
    parser.add_argument("--tokens", type=at_least(2), default=64, help="generated by each request")
    parser.add_argument(
        "--guess-tokens", type=at_least(2), default=128, help="of answers with guesses"
    )
    parser.add_argument(
        "--draft-model",
        default="smollm2-135m-instruct",
        help="of a ring beside the first one; empty: none",
    )
    parser.add_argument("--repeats", type=at_least(1), default=3, help="rounds")
    parser.add_argument("--nodes", type=at_least(1), default=3, help="of the ring")
    parser.add_argument("--delay-ms", type=float, default=20.0, help="added to every link, one way")
    parser.add_argument("--up-mbit", type=float, default=20.0, help="rate for the long prompt")
    parser.add_argument("--wire-dtype", default="float32", help="of activations between nodes")
    add_options(parser)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
