"""Guesses over far links: what a ring gives one request with them, as a multiple of the same ring
without. Greedy answers have to be the same.

Texts go on from a beginning, since a model of 135 million parameters follows few instructions: code
whose edited copy has begun, a summary that quotes, and two that quote nothing. Greedy answers of
so small a model go round in circles sooner or later; the last one is drawn, and does not. It may
differ where a number falls between two tokens: rows computed together round otherwise than alone.
"""

import statistics
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks._bars import Bar
from benchmarks._far_ring import Answer, FarRing

REPEATING_BAR: Final = 2.0
ANY_BAR: Final = 1.0

_CODE: Final = """class Basket:
    def __init__(self, owner, currency):
        self.owner = owner
        self.currency = currency
        self.items = []

    def add(self, name, price, quantity):
        item = {"name": name, "price": price, "quantity": quantity}
        self.items.append(item)

    def subtotal(self):
        total = 0
        for item in self.items:
            total = total + item["price"] * item["quantity"]
        return total
"""
_NEWS: Final = (
    "The Amazon rainforest covers much of the Amazon basin of South America. The basin covers "
    "seven million square kilometres, of which five and a half million are covered by the "
    "rainforest. The region includes territory belonging to nine nations. Most of the forest is in "
    "Brazil, with sixty per cent of the rainforest, followed by Peru with thirteen per cent, and "
    "Colombia with ten per cent."
)

DRAWN: Final = "drawn letter"
REPEATING: Final = {
    "code edit": (
        f"# A class, and the same one renamed to Cart.\n\n{_CODE}\n# Renamed:\n\n"
        + _CODE.replace("Basket", "Cart")[:150]
    ),
    "summary": f"Text: {_NEWS}\n\nSummary in the words of the text: The Amazon rainforest covers",
}
ANY: Final = {
    "story": "Once upon a time a fox lived beside a lighthouse.",
    DRAWN: "Dear editor, I was surprised to read in your paper of last Monday that",
}


@dataclass(slots=True)
class Guessed:
    """One text, round by round. Rates in tokens/s."""

    plain_per_s: list[float] = field(default_factory=list)
    guessed_per_s: list[float] = field(default_factory=list)

    @property
    def gain(self) -> float:
        pairs = zip(self.guessed_per_s, self.plain_per_s, strict=True)
        return statistics.median(guessed / plain for guessed, plain in pairs)


async def measure_guesses(ring: FarRing, num_tokens: int, repeats: int) -> dict[str, Guessed]:
    """Each text without and with guesses, one after the other, in every round.

    Raises RuntimeError where greedy answers differ.
    """
    found = {name: Guessed() for name in (*REPEATING, *ANY)}
    for _ in range(repeats):
        for name, text in (*REPEATING.items(), *ANY.items()):
            heat = 1.0 if name == DRAWN else 0.0
            (plain,) = await ring.ask([text], num_tokens, draft_tokens=0, temperature=heat)
            (guessed,) = await ring.ask([text], num_tokens, draft_tokens=None, temperature=heat)
            if not heat and guessed.token_ids != plain.token_ids:
                raise RuntimeError(f"{name}: other tokens with guesses")
            found[name].plain_per_s.append(per_s(plain))
            found[name].guessed_per_s.append(per_s(guessed))
    return found


def per_s(answer: Answer) -> float:
    """From the first token on."""
    return (len(answer.token_ids) - 1) / (answer.times_s[-1] - answer.times_s[0])


def guess_bars(found: dict[str, Guessed]) -> list[Bar]:
    return [
        Bar(
            name=f"{name}: with guesses / without",
            measured=guessed.gain,
            least=REPEATING_BAR if name in REPEATING else ANY_BAR,
        )
        for name, guessed in found.items()
    ]


def show_guesses(found: dict[str, Guessed], console: Console) -> None:
    table = Table("text", "tok/s without guesses", "with", "gain")
    for name, guessed in found.items():
        figures = map(statistics.median, (guessed.plain_per_s, guessed.guessed_per_s))
        table.add_row(name, *(f"{figure:.1f}" for figure in figures), f"{guessed.gain:.2f}")
    console.print(table)
