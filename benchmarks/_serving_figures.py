"""What many requests get from one chain of three nodes, one thread each, over real processes.

Continuous batching: tokens per second under Poisson arrivals of mixed prompts, beside one request
at a time. Chunks: gaps between tokens of running streams while a long prompt arrives, with chunks
and without. Prefixes: time to the first token of requests that share a system prompt.

Run it as `python benchmarks/serving.py [--strict] [--json FILE]`.
"""

import argparse
import asyncio
import statistics
from dataclasses import dataclass
from random import Random

from rich.console import Console
from rich.table import Table

from benchmarks._bars import Bar, add_options, at_least, judge, wide_console, write_figures
from benchmarks._serving_chain import Answer, Chain
from plait.models import load_spec, pull, resolve
from plait.types import ModelSpec

RATE_BAR, GAP_BAR, TTFT_BAR = 3.0, 3.0, 0.35
PROMPT_TOKENS = (16, 32, 64, 128)
NEW_TOKENS = (24, 48, 72)
SYSTEM_TOKENS, QUESTION_TOKENS, NUM_SHARING = 600, 20, 8


@dataclass(frozen=True, slots=True)
class Gaps:
    """Between tokens of the running streams: before the long prompt came (`usual_ms`, a median),
    and while it ran; milliseconds."""

    usual_ms: float
    median_ms: float
    p99_ms: float
    most_ms: float
    prompt_s: float

    @property
    def ratio(self) -> float:
        return self.p99_ms / self.median_ms


async def rates(chain: Chain, rng: Random, *, num_requests: int) -> dict[str, float]:
    """Tokens per second: some one after the other, then all as they arrive. They arrive five times
    as fast as one after the other could be served, so the chain is busy, and never all at once."""
    mix = [(rng.choice(PROMPT_TOKENS), rng.choice(NEW_TOKENS)) for _ in range(num_requests)]
    await chain.ask(chain.prompt(rng, 32), 16)  # warm
    alone = mix[: max(4, num_requests // 4)]
    answers = [await chain.ask(chain.prompt(rng, size), new) for size, new in alone]
    alone_s = answers[-1].times[-1] - answers[0].sent_s
    alone_rate = sum(len(answer.times) for answer in answers) / alone_s
    pause_s = alone_s / len(alone) / 5

    async def later(at_s: float, size: int, new: int) -> Answer:
        await asyncio.sleep(at_s)
        return await chain.ask(chain.prompt(rng, size), new)

    at_s, tasks = 0.0, []
    for size, new in mix:
        tasks.append(later(at_s, size, new))
        at_s += rng.expovariate(1 / pause_s)
    answers = await asyncio.gather(*tasks)
    span_s = max(a.times[-1] for a in answers) - min(a.sent_s for a in answers)
    together = sum(len(answer.times) for answer in answers) / span_s
    return {
        "one_at_a_time_tokens_per_s": alone_rate,
        "poisson_tokens_per_s": together,
        "ratio": together / alone_rate,
        "arrivals_per_s": 1 / pause_s,
    }


async def gaps(chain: Chain, rng: Random, *, num_streams: int, long_tokens: int) -> Gaps:
    """Streams run; a long prompt arrives. Gaps from then until it has its first token."""
    watched = [Answer(0.0) for _ in range(num_streams)]
    async with asyncio.TaskGroup() as group:
        streams = [
            group.create_task(chain.ask(chain.prompt(rng, 32), 500, answer=answer))
            for answer in watched
        ]
        while any(len(answer.times) < 20 for answer in watched):  # noqa: ASYNC110 - four of them
            await asyncio.sleep(0.02)
        long = await chain.ask(chain.prompt(rng, long_tokens), 2)
        for stream in streams:
            stream.cancel()
    begin_s, end_s = long.sent_s, long.times[0]
    usual = [gap for answer in watched for gap in answer.gaps_s(0.0, begin_s)[-12:]]
    found = sorted(1e3 * gap for answer in watched for gap in answer.gaps_s(begin_s, end_s))
    if len(found) < 2:  # decodes stood still: one gap each, the whole of it
        found = [1e3 * (end_s - begin_s)] * 2
    p99 = found[min(len(found) - 1, int(0.99 * len(found)))]
    return Gaps(
        1e3 * statistics.median(usual), statistics.median(found), p99, found[-1], long.ttft_s
    )


async def sharing(chain: Chain, rng: Random) -> list[float]:
    """Times to the first token over one system prompt, one request after the other; seconds."""
    system = chain.prompt(rng, SYSTEM_TOKENS)
    return [
        (await chain.ask(system + chain.prompt(rng, QUESTION_TOKENS), 4)).ttft_s
        for _ in range(NUM_SHARING)
    ]


async def measure(spec: ModelSpec, options: argparse.Namespace) -> dict[str, object]:
    """All figures of one run."""
    rng = Random(options.seed)
    chain = Chain.start(spec, num_nodes=options.nodes)
    try:
        rated = [
            await rates(chain, rng, num_requests=options.requests) for _ in range(options.repeats)
        ]
        shared = [await sharing(chain, rng) for _ in range(options.repeats)]
        chunked = [
            await gaps(chain, rng, num_streams=options.streams, long_tokens=options.long)
            for _ in range(options.repeats)
        ]
        num_broken = chain.num_broken()
    finally:
        await chain.close()
    whole: list[Gaps] = []
    if not options.chunked_only:
        chain = Chain.start(spec, num_nodes=options.nodes, chunks_prompts=False)
        try:
            whole.append(
                await gaps(chain, rng, num_streams=options.streams, long_tokens=options.long)
            )
        finally:
            await chain.close()
    return {
        "rates": rated,
        "ttft_s": shared,
        "ttft_ratio": statistics.median(max(times[1:]) / times[0] for times in shared),
        "rate_ratio": statistics.median(each["ratio"] for each in rated),
        "gap_ratio": statistics.median(each.ratio for each in chunked),
        "gaps_chunked": [_told(each) for each in chunked],
        "gaps_whole": [_told(each) for each in whole],
        "routes_broken": num_broken,
    }


def _told(gaps: Gaps) -> dict[str, float]:
    return {
        "usual_ms": gaps.usual_ms,
        "median_ms": gaps.median_ms,
        "p99_ms": gaps.p99_ms,
        "most_ms": gaps.most_ms,
        "prompt_s": gaps.prompt_s,
        "p99_over_median": gaps.ratio,
    }


def show(figures: dict[str, object], console: Console) -> None:
    """Print the figures."""
    table = Table("tokens/s", "one at a time", "Poisson", "ratio")
    for each in _rows(figures["rates"]):
        one, many = each["one_at_a_time_tokens_per_s"], each["poisson_tokens_per_s"]
        table.add_row("", f"{one:.1f}", f"{many:.1f}", f"{each['ratio']:.2f}")
    console.print(table)
    table = Table(
        "gaps while a long prompt runs", "before, ms", "median ms", "p99 ms", "most ms", "prompt s"
    )
    for name, key in (("chunks", "gaps_chunked"), ("whole prompts", "gaps_whole")):
        for each in _rows(figures[key]):
            words = [f"{each[k]:.0f}" for k in ("usual_ms", "median_ms", "p99_ms", "most_ms")]
            table.add_row(name, *words, f"{each['prompt_s']:.1f}")
    console.print(table)
    table = Table("shared system prompt: TTFT, s", *(str(n + 1) for n in range(NUM_SHARING)))
    times = figures["ttft_s"]
    assert isinstance(times, list)
    for row in times:
        table.add_row("", *(f"{value:.2f}" for value in row))
    console.print(table)


def _rows(found: object) -> list[dict[str, float]]:
    assert isinstance(found, list)
    return found


def bars_of(figures: dict[str, object]) -> list[Bar]:
    """The three things that this benchmark is about."""
    rate, gap, ttft = (figures[k] for k in ("rate_ratio", "gap_ratio", "ttft_ratio"))
    assert isinstance(rate, float) and isinstance(gap, float) and isinstance(ttft, float)
    return [
        Bar(name="Poisson arrivals / one request at a time", measured=rate, least=RATE_BAR),
        Bar(name="p99 gap / median while a long prompt runs", measured=gap, most=GAP_BAR),
        Bar(name="shared prompt, TTFT of the slowest later / first", measured=ttft, most=TTFT_BAR),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a catalogue name")
    parser.add_argument("--nodes", type=at_least(1), default=3, help="of the chain")
    parser.add_argument("--requests", type=at_least(1), default=24, help="of the Poisson arrivals")
    parser.add_argument(
        "--streams", type=at_least(1), default=4, help="that run as the prompt arrives"
    )
    parser.add_argument("--long", type=at_least(1), default=1_500, help="tokens of the long prompt")
    parser.add_argument(
        "--repeats", type=at_least(1), default=1, help="of everything; medians are judged"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chunked-only", action="store_true", help="leave whole prompts out")
    add_options(parser)
    options = parser.parse_args()
    spec = load_spec(pull(resolve(options.model)))
    figures = asyncio.run(measure(spec, options))
    console = wide_console()
    show(figures, console)
    bars = bars_of(figures)
    told = {"benchmark": "serving", "model": options.model, **figures}
    write_figures(options.json, told, bars)
    judge(bars, console, is_strict=options.strict)


if __name__ == "__main__":
    main()
