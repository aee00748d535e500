"""A draft model over far links: what a ring gives one request with its guesses, as a multiple of
the same ring without any, and of the one that looks back only.

The one pair of models at hand is SmolLM2-135M, which drafts for itself: a guess is always right
and takes as long as a token of the whole ring takes to compute, so all that is saved is trips. A
draft model of a tenth of the size guesses ten times as quickly, and is wrong now and then. All
nodes share this machine's cores, which a first stage of a real ring has to itself.
"""

import argparse
import statistics
from dataclasses import dataclass, field, replace
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks._bars import Bar
from benchmarks._far_ring import FarRing
from benchmarks._wan_guesses import ANY, DRAWN, per_s
from plait.types import DType, ModelSpec, WeightFormat

KV_TOKENS: Final = 2048
_BUFFER_BYTES: Final = 64 << 20
TEXTS: Final = {
    "letter": "Dear editor, I was surprised to read in your paper of last Monday that",
    DRAWN: ANY[DRAWN],
}


@dataclass(slots=True)
class Drafted:
    """One text, round by round. Rates in tokens/s."""

    plain_per_s: list[float] = field(default_factory=list)
    drafted_per_s: list[float] = field(default_factory=list)

    @property
    def gain(self) -> float:
        pairs = zip(self.drafted_per_s, self.plain_per_s, strict=True)
        return statistics.median(drafted / plain for drafted, plain in pairs)


def draft_bytes(spec: ModelSpec) -> int:
    """What a node's draft model takes at most: weights, KV, buffers."""
    half = replace(spec, weight_format=WeightFormat.FP16)
    kv = KV_TOKENS * spec.kv_bytes_per_token(spec.num_layers, DType.FLOAT32)
    return half.weight_bytes(half.whole, DType.FLOAT32) + kv + _BUFFER_BYTES


async def measure_drafts(ring: FarRing, options: argparse.Namespace) -> dict[str, Drafted]:
    """Each text without guesses and with those of the draft model, one after the other.

    Raises RuntimeError where greedy answers differ.
    """
    found = {name: Drafted() for name in TEXTS}
    for _ in range(options.repeats):
        for name, text in TEXTS.items():
            heat = 1.0 if name == DRAWN else 0.0
            count = options.guess_tokens
            (plain,) = await ring.ask([text], count, draft_tokens=0, temperature=heat)
            (drafted,) = await ring.ask([text], count, draft_tokens=None, temperature=heat)
            if not heat and drafted.token_ids != plain.token_ids:
                raise RuntimeError(f"{name}: other tokens with a draft model")
            found[name].plain_per_s.append(per_s(plain))
            found[name].drafted_per_s.append(per_s(drafted))
    return found


def draft_bars(found: dict[str, Drafted]) -> list[Bar]:
    return [
        Bar(name=f"{name}, drafted by the model itself / without", measured=each.gain, least=1.0)
        for name, each in found.items()
    ]


def show_drafts(found: dict[str, Drafted], totals: str, console: Console) -> None:
    table = Table("text", "tok/s without guesses", "with a draft model", "gain")
    for name, each in found.items():
        figures = map(statistics.median, (each.plain_per_s, each.drafted_per_s))
        table.add_row(name, *(f"{figure:.1f}" for figure in figures), f"{each.gain:.2f}")
    console.print(table)
    console.print(f"{totals} (SmolLM2-135M drafts for itself: only trips are saved)")
