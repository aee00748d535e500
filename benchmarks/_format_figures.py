"""What each weight format costs: perplexity and greedy agreement on a fixed text beside the same
file dequantised to float32, and bytes in memory beside the file's."""

import argparse
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks._bars import Bar, add_options, judge, wide_console, write_figures
from benchmarks._engine_rig import EngineRig
from benchmarks._fixed_text import perplexity_of, text_ids
from benchmarks._least_blocks import error_over_least
from plait.models import in_format, load_spec, open_source, pull, resolve
from plait.models.quantizing import quantize_model
from plait.models.tensors import whole_tensor_names
from plait.types import WeightFormat

CASES = (
    ("f16", "fp16", 1.01),
    ("q8_0", "fp16", 1.01),
    ("q8_0", "int8", 1.01),
    ("f16", "int8", 1.01),
    ("q4_0", "fp16", 1.01),
    ("q4_0", "int4", 1.06),
    ("q4_1", "int4", 1.06),
    ("f16", "int4", 1.06),
    ("q8_0", "stored", 1.0001),
    ("q5_0", "stored", 1.0001),
    ("q4_0", "stored", 1.0001),
    ("q4_1", "stored", 1.0001),
)
"""File, what an operator asks for, and the most that perplexity may be times that of the same file
as float32."""

SOURCE_MOST = {"f16": 1.01, "q8_0": 1.01, "q4_1": 1.06}
"""Of a file as float32, times that of the file it was made from. Q4_0 has no such bar: a source of
four bits with a least value a block is no grid of Q4_0's, and what is over grows with the squared
error, of which no choice of scales can take more than `SCALES_MOST` says; see decision 171."""

SCALES_MOST = 1.005
"""Squared error of Q4_0 over the least that any scales leave."""

KEPT = (
    ("q8_0", "int8"),
    ("q4_0", "int4"),
    ("q4_1", "int4"),
    ("q8_0", "stored"),
    ("q5_0", "stored"),
    ("q4_0", "stored"),
    ("q4_1", "stored"),
)
"""Quantised files that stay so in memory."""

BYTES_MOST = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFigure:
    """One file in one format. `agreement` is the share of positions with float32's best token;
    `bytes_ratio` weights in memory over those in the file; `source_ratio` the perplexity of the
    file, as float32, over that of the one it was made from."""

    file: str
    weights: str
    weight_format: str
    layout: str
    perplexity: float
    perplexity_ratio: float
    perplexity_most: float
    agreement: float
    weight_bytes: int
    bytes_ratio: float
    source_ratio: float

    def figures(self) -> dict[str, object]:
        """For `--json`."""
        return asdict(self)


def measure_formats(model_name: str, folder: Path) -> list[FormatFigure]:
    """Every case, from files that are written into `folder`."""
    ids = text_ids(model_name)
    found: list[FormatFigure] = []
    wide: dict[str, Tensor] = {}
    original = pull(resolve(model_name))
    source_rig = EngineRig(original, load_spec(original), WeightFormat.NATIVE)
    source_perplexity = perplexity_of(source_rig.logits(ids), ids)
    del source_rig
    for kind, weights, most in CASES:
        path = folder / f"{kind}.gguf"
        if not path.exists():
            quantize_model(pull(resolve(model_name)), path, kind)
        source = resolve(str(path))
        spec = load_spec(source)
        if kind not in wide:
            wide[kind] = EngineRig(source, spec, WeightFormat.NATIVE).logits(ids)
        opened = open_source(source)
        spec = in_format(spec, weights, opened)
        stored = sum(opened.stored_bytes(n) for n in whole_tensor_names(spec, spec.whole))
        opened.close()
        rig = EngineRig(source, spec, spec.weight_format)
        logits = rig.logits(ids)
        held = rig.stage.weight_bytes
        if rig.stage.embedding is not None:
            held -= rig.stage.embedding.weight_bytes
        perplexity = perplexity_of(logits, ids)
        found.append(
            FormatFigure(
                file=kind,
                weights=weights,
                weight_format=spec.weight_format,
                layout=rig.stage.layout,
                perplexity=perplexity,
                perplexity_ratio=perplexity / perplexity_of(wide[kind], ids),
                perplexity_most=most,
                agreement=float((logits.argmax(-1) == wide[kind].argmax(-1)).float().mean()),
                weight_bytes=held,
                bytes_ratio=held / stored,
                source_ratio=perplexity_of(wide[kind], ids) / source_perplexity,
            )
        )
    return found


def scale_bar(model_name: str) -> Bar:
    """How near the search for scales is to the best ones."""
    return Bar(
        name="q4_0, squared error / the least of any scales",
        measured=error_over_least(pull(resolve(model_name))),
        most=SCALES_MOST,
    )


def format_bars(figures: list[FormatFigure]) -> list[Bar]:
    """Perplexity of every case, bytes of those that stay quantised."""
    bars: list[Bar] = [
        Bar(
            name=f"{kind}, perplexity / its source's, both as float32",
            measured=next(f.source_ratio for f in figures if f.file == kind),
            most=most,
        )
        for kind, most in SOURCE_MOST.items()
        if any(f.file == kind for f in figures)
    ]
    for figure in figures:
        name = f"{figure.file} as {figure.weights}"
        bars.append(
            Bar(
                name=f"{name}, perplexity / float32",
                measured=figure.perplexity_ratio,
                most=figure.perplexity_most,
            )
        )
        if (figure.file, figure.weights) in KEPT:
            bars.append(
                Bar(
                    name=f"{name}, bytes held / stored",
                    measured=figure.bytes_ratio,
                    most=BYTES_MOST,
                )
            )
    return bars


def show_formats(figures: list[FormatFigure], console: Console) -> None:
    """Print a line for each case."""
    if not figures:
        return
    table = Table(
        "file", "/ source", "held as", "perplexity", "/ float32", "agreement", "MiB", "/ stored"
    )
    for figure in figures:
        table.add_row(
            figure.file,
            f"{figure.source_ratio:.4f}",
            figure.layout,
            f"{figure.perplexity:.3f}",
            f"{figure.perplexity_ratio:.4f}",
            f"{figure.agreement:.3f}",
            f"{figure.weight_bytes / 2**20:.0f}",
            f"{figure.bytes_ratio:.3f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a catalogue name")
    add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = wide_console()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure_formats(options.model, Path(folder))
    show_formats(figures, console)
    bars = [*format_bars(figures), scale_bar(options.model)]
    found = {"benchmark": "formats", "formats": [figure.figures() for figure in figures]}
    write_figures(options.json, found, bars)
    judge(bars, console, is_strict=options.strict)


if __name__ == "__main__":
    main()
