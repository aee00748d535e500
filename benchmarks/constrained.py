"""What choosing tokens costs at 8 rows, free and held to a JSON schema, beside a decode step.

CPU milliseconds of one thread with SmolLM2's vocabulary and its own logits behind a text, lower
quartiles of interleaved draws.

`python benchmarks/constrained.py [--strict] [--json FILE]`
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.table import Table

if __name__ == "__main__":
    # Helpers are named from the root, as in every benchmark.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks._bars import Bar, add_options, at_least, judge, wide_console, write_figures
from benchmarks._engine_rig import EngineRig
from node.engine.grammar import GrammarCompiler
from node.engine.sampler import SequenceSampler, draw_rows
from plait.models import load_spec, pull, resolve
from plait.models.vocabulary import load_vocabulary
from plait.types import Constraint, ConstraintKind, ModelSource, SamplingParams

MODEL = "smollm2-135m-instruct"
NUM_ROWS = 8
NUM_STEPS = 24
EXTRA_MS_MAX = 1.0
"""A held step may cost so much more than a free one, all rows together."""

ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "kind": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "kind", "count", "tags"],
    "additionalProperties": False,
}
SCHEMA = Constraint(
    ConstraintKind.JSON_SCHEMA, json.dumps({"type": "array", "items": ITEM, "minItems": 100})
)
KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "greedy, held": SamplingParams(temperature=0.0, constraint=SCHEMA),
    "temperature": SamplingParams(),
    "temperature, held": SamplingParams(constraint=SCHEMA),
    "top-p 0.9": SamplingParams(top_p=0.9),
    "top-p 0.9, held": SamplingParams(top_p=0.9, constraint=SCHEMA),
    "penalties, bias": SamplingParams(
        presence_penalty=0.5, repetition_penalty=1.1, logit_bias=((5, 1.0), (9, -100.0))
    ),
}


def timed(work: Callable[[], object]) -> float:
    """CPU milliseconds."""
    started_s = time.process_time()
    work()
    return (time.process_time() - started_s) * 1e3


def measure(source: ModelSource, *, num_draws: int) -> dict[str, float]:
    """Milliseconds by what took them."""
    figures: dict[str, float] = {}
    spec = load_spec(source)
    rig = EngineRig(source, spec, spec.weight_format)
    long_ms, short_ms = (
        timed(partial(rig.decode, [1, 2, 3, 4], NUM_ROWS, num)) for num in (1 + NUM_STEPS, 1)
    )
    compilers: list[GrammarCompiler] = []

    def make() -> None:
        compilers.append(
            GrammarCompiler(
                load_vocabulary(source),
                vocab_size=spec.vocab_size,
                eos_token_ids=spec.eos_token_ids,
            )
        )

    figures["vocabulary, once"] = timed(make)
    (compiler,) = compilers
    figures["compile"] = timed(lambda: compiler.grammar(SCHEMA, []))
    samplers = {
        name: [SequenceSampler(params, range(200)) for _ in range(NUM_ROWS)]
        for name, params in KINDS.items()
    }
    for each in (each for rows in samplers.values() for each in rows):
        if each.constraint is not None:
            each.grammar = compiler.grammar(each.constraint, [])
    taken: dict[str, list[float]] = {name: [] for name in KINDS}
    told = rig.logits([(17 + 31 * at) % 4096 for at in range(num_draws + NUM_ROWS)])
    for draw in range(num_draws):
        logits = told[draw : draw + NUM_ROWS]
        for name, rows in samplers.items():
            work = partial(draw_rows, logits, rows, [draw] * NUM_ROWS)
            taken[name].append(timed(work))
    figures["a decode step"] = (long_ms - short_ms) / NUM_STEPS
    return figures | {name: statistics.quantiles(values, n=4)[0] for name, values in taken.items()}


def main() -> None:
    """Print the table and the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--draws", type=at_least(2), default=60, help="draws of each kind that are timed"
    )
    add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(pull(resolve(MODEL)), num_draws=options.draws)
    console = wide_console()
    table = Table("", "ms", "share of a step", title=f"choosing {NUM_ROWS} tokens")
    shares = {name: figures[name] / (figures["a decode step"] + figures[name]) for name in KINDS}
    for name, value in figures.items():
        table.add_row(name, f"{value:.2f}", f"{shares[name]:.1%}" if name in shares else "")
    console.print(table)
    bars = [
        Bar(
            name=f"a held step beside a free one, {name}",
            measured=figures[f"{name}, held"] - figures[name],
            most=EXTRA_MS_MAX,
            unit="ms",
        )
        for name in ("greedy", "temperature", "top-p 0.9")
    ]
    told = {"benchmark": "constrained", "ms": figures, "share_of_step": shares}
    write_figures(options.json, told, bars)
    judge(bars, console, is_strict=options.strict)


if __name__ == "__main__":
    main()
