"""What looking the embedding's rows up in the weights' file costs beside a table in memory.

CPU microseconds of one thread, medians of interleaved runs: rows that are kept, rows out of the
file, the table. Run it as `python benchmarks/embedding.py [--strict] [--json FILE]`.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.table import Table

if __name__ == "__main__":
    # Helpers are named from the root, as in every benchmark.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks._bars import Bar, add_options, at_least, judge, wide_console, write_figures
from node.engine.device import Device, pick_device
from node.engine.embedding import RowEmbedding, TableEmbedding
from node.engine.memory import CACHED_ROWS_MAX
from node.engine.tensor_bytes import tensor_from_bytes
from plait.models import open_source, pull, resolve
from plait.models.tensors import EMBEDDING
from plait.types import DType, ModelSource

KEPT, FRESH, IN_MEMORY = "kept rows", "rows out of the file", "table in memory"
LENGTHS = (1, 128)
"""Token ids of a call: a decode step's, a prefill chunk's."""

BARS_US = {(KEPT, 1): 100.0, (FRESH, 1): 1_000.0, (FRESH, 128): 5_000.0}
"""At most: under a hundredth of a step of SmolLM2, and a tenth where the row is a new one."""

Figures = dict[str, dict[int, float]]
"""Microseconds of a call, by way and length."""


def measure(source: ModelSource, device: Device, *, repeats: int) -> Figures:
    """Time the three ways. Raises RuntimeError where their rows differ in a bit."""
    opened = open_source(source)
    spec = opened.spec
    stored = opened.read(EMBEDDING)
    table = TableEmbedding(tensor_from_bytes(stored.buffer, stored.dtype, stored.shape))
    kept = RowEmbedding(opened, spec, device, cached_rows=CACHED_ROWS_MAX)
    fresh = RowEmbedding(opened, spec, device, cached_rows=0)
    ways = {IN_MEMORY: table, KEPT: kept, FRESH: fresh}
    rng = random.Random(0)
    figures: Figures = {}
    for length in LENGTHS:
        texts = [rng.sample(range(spec.vocab_size // 3), length) for _ in range(20)]
        rounds: dict[str, list[float]] = {name: [] for name in ways}
        for text in texts:
            if not torch.equal(kept(text), table(text)) or not torch.equal(
                fresh(text), table(text)
            ):
                raise RuntimeError("rows differ from the table's")
        for _ in range(repeats):
            for name, lookup in ways.items():
                rounds[name].append(_call_us(lambda ids, f=lookup: f(ids), texts))  # type: ignore[misc]
        for name, values in rounds.items():
            figures.setdefault(name, {})[length] = statistics.median(values)
    opened.close()
    return figures


def _call_us(lookup: Callable[[list[int]], object], texts: list[list[int]]) -> float:
    started = time.process_time()
    for text in texts:
        lookup(text)
    return 1e6 * (time.process_time() - started) / len(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a catalogue name")
    parser.add_argument("--repeats", type=at_least(1), default=20, help="measured rounds")
    add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = pick_device("cpu", DType.FLOAT32)
    figures = measure(pull(resolve(options.model)), device, repeats=options.repeats)
    table = Table("way", *(f"{length} ids, µs" for length in LENGTHS))
    for name, values in figures.items():
        table.add_row(name, *(f"{values[length]:.1f}" for length in LENGTHS))
    console = wide_console()
    console.print(table)
    bars = [
        Bar(name=f"{name}, {length} ids", measured=figures[name][length], most=most_us, unit="µs")
        for (name, length), most_us in BARS_US.items()
    ]
    write_figures(options.json, {"benchmark": "embedding", "call_us": figures}, bars)
    judge(bars, console, is_strict=options.strict)


if __name__ == "__main__":
    main()
