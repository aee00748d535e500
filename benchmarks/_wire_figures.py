"""The dtypes of a hop: bytes that real hops carry, and the perplexity of a fixed text over three
stages whose hidden states are written down and read again in between.

Perplexity and agreement come from one process that runs the stages one after the other with the
codec of real hops; bytes from rings of real nodes, counted by the proxies between them.
"""

import argparse
import asyncio
import math
from collections.abc import Sequence as Rows
from dataclasses import asdict, dataclass
from typing import Final

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks._bars import Bar, add_options, judge, wide_console, write_figures
from benchmarks._engine_rig import POSITIONS, EngineRig
from benchmarks._far_ring import FarRing
from benchmarks._fixed_text import perplexity_of, text_ids
from node.engine.sequence import Sequence, StepItem
from node.engine.wire_rows import rows_from_wire, rows_to_wire
from node.ports import SequenceOpen, StageWork
from plait.models import load_spec, pull, resolve
from plait.types import DType, LayerSpan, ModelSpec, RequestId, SamplingParams, WeightFormat

NUM_STAGES: Final = 3
PROMPT_TOKENS: Final = 256
NEW_TOKENS: Final = 64
BYTES_BAR: Final = 0.56
PERPLEXITY_BAR: Final = 1.01
AGREEMENT_BAR: Final = 0.98


@dataclass(slots=True)
class WireFigure:
    """One dtype. Ratios are to float32's, but for the hop's bytes: to float16's."""

    dtype: DType
    perplexity: float
    perplexity_ratio: float
    agreement: float
    prompt_bytes: float = math.nan
    token_bytes: float = math.nan

    @property
    def request_bytes(self) -> float:
        return PROMPT_TOKENS * self.prompt_bytes + NEW_TOKENS * self.token_bytes


class StagedText:
    """A text through the stages of one process."""

    def __init__(self, rig: EngineRig, ids: Rows[int]) -> None:
        self._rig = rig
        self._ids = ids

    @torch.inference_mode()
    def logits(self, dtype: DType) -> Tensor:
        """(T, vocab), hidden states written in `dtype` between stages."""
        rig, ids = self._rig, self._ids
        cuts = [rig.spec.num_layers * k // NUM_STAGES for k in range(NUM_STAGES + 1)]
        rows: Tensor | None = None
        for index in range(NUM_STAGES):
            item = self._item(index, LayerSpan(cuts[index], cuts[index + 1]))
            arrived = rig.runner.input_rows(item) if rows is None else rows
            (rows,) = rig.runner.forward([item], [arrived])
            if index < NUM_STAGES - 1:
                payload = rows_to_wire(rows, dtype)
                if payload is None:
                    raise RuntimeError(f"a hidden state that {dtype} cannot carry")
                hidden = rig.spec.hidden_size
                rows = rows_from_wire(payload, dtype, num_tokens=len(ids), hidden_size=hidden)
                rows = rows.float()
        assert rows is not None
        return rig.stage.logits(rows)

    def _item(self, index: int, span: LayerSpan) -> StepItem:
        opened = SequenceOpen(
            request_id=RequestId(f"s{index}"),
            epoch=0,
            span=span,
            kv_tokens=POSITIONS,
            wire_dtype=DType.FLOAT32,
            sampling=SamplingParams(temperature=0.0),
        )
        sequence = Sequence(opened)
        sequence.runs = ((index * POSITIONS, POSITIONS),)
        work = StageWork(opened.request_id, 0, 0, len(self._ids), token_ids=self._ids)
        return StepItem(sequence, work)


def measure_answers(rig: EngineRig, ids: Rows[int]) -> list[WireFigure]:
    text = StagedText(rig, ids)
    exact = text.logits(DType.FLOAT32)
    exact_perplexity = perplexity_of(exact, ids)
    found: list[WireFigure] = []
    for dtype in DType:
        logits = text.logits(dtype)
        perplexity = perplexity_of(logits, ids)
        agreement = float((logits.argmax(-1) == exact.argmax(-1)).float().mean())
        ratio = perplexity / exact_perplexity
        found.append(WireFigure(dtype, perplexity, ratio, agreement))
    return found


async def measure_hop(spec: ModelSpec, ids: Rows[int], figure: WireFigure) -> None:
    """Bytes of one hop, everything around the rows counted: of each prompt token, and of each
    token after it."""
    ring = FarRing.start(spec, num_nodes=NUM_STAGES, wire_dtype=figure.dtype.value)
    try:
        await ring.ask([ids[:8]], 4)
        before = ring.way_bytes()
        await ring.ask([ids[:PROMPT_TOKENS]], 1)
        between = ring.way_bytes()
        await ring.ask([ids[:1]], NEW_TOKENS + 1)
        after = ring.way_bytes()
    finally:
        await ring.close()
    figure.prompt_bytes = _hop_growth(before, between) / PROMPT_TOKENS
    figure.token_bytes = _hop_growth(between, after) / NEW_TOKENS


def _hop_growth(before: dict[int, int], after: dict[int, int]) -> float:
    """Of the hops with activations: tokens go the last one, which grows least."""
    grown = sorted((n - before.get(way, 0) for way, n in after.items()), reverse=True)
    hops = grown[: NUM_STAGES - 1]
    return sum(hops) / len(hops)


def bars_of(figures: list[WireFigure]) -> list[Bar]:
    by_dtype = {figure.dtype: figure for figure in figures}
    int8, half = by_dtype[DType.INT8], by_dtype[DType.FLOAT16]
    bars = [
        Bar(name="int8, perplexity / float32", measured=int8.perplexity_ratio, most=PERPLEXITY_BAR),
        Bar(name="int8, argmax as float32", measured=int8.agreement, least=AGREEMENT_BAR),
    ]
    request = f"a request of {PROMPT_TOKENS} and {NEW_TOKENS} tokens"
    for name, share in (
        ("prompts", int8.prompt_bytes / half.prompt_bytes),
        (request, int8.request_bytes / half.request_bytes),
    ):
        bars.append(
            Bar(name=f"int8, bytes on the hop / float16, {name}", measured=share, most=BYTES_BAR)
        )
    return bars


def show(figures: list[WireFigure], console: Console) -> None:
    table = Table("dtype", "perplexity", "/ float32", "argmax", "B / prompt token", "B / token")
    for f in figures:
        table.add_row(
            f.dtype.value,
            f"{f.perplexity:.4f}",
            f"{f.perplexity_ratio:.5f}",
            f"{f.agreement:.4f}",
            f"{f.prompt_bytes:.0f}",
            f"{f.token_bytes:.0f}",
        )
    console.print(table)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    source = pull(resolve(options.model))
    spec = load_spec(source)
    ids = text_ids(options.model)
    figures = measure_answers(EngineRig(source, spec, WeightFormat.NATIVE), ids)
    for figure in figures:
        if figure.dtype in (DType.FLOAT16, DType.INT8):
            asyncio.run(measure_hop(spec, ids, figure))
    console = wide_console()
    show(figures, console)
    bars = bars_of(figures)
    rows = [asdict(figure) for figure in figures]
    write_figures(options.json, {"benchmark": "wire", "dtypes": rows}, bars)
    judge(bars, console, is_strict=options.strict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a catalogue name")
    add_options(parser)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
