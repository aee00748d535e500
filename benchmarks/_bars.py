"""Bars: what a figure must reach, said in one line each, and what `--strict` makes of a miss."""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

WIDTH = 160
"""Of tables in a file or a pipe: at the 80 that are usual there, figures are cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar: `measured` should be at least `least`, or at most `most`; one of them is given."""

    name: str
    measured: float
    least: float | None = None
    most: float | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        if (self.least is None) == (self.most is None):
            raise ValueError(f"{self.name}: give `least` or `most`")

    @property
    def holds(self) -> bool:
        """A figure that is not a number misses."""
        if self.least is not None:
            return self.measured >= self.least
        return self.most is not None and self.measured <= self.most

    def line(self) -> str:
        """What was asked for, what was measured, and the verdict."""
        side, limit = ("at least", self.least) if self.least is not None else ("at most", self.most)
        unit = f" {self.unit}" if self.unit else ""
        verdict = "holds" if self.holds else "misses"
        return (
            f"bar: {self.name}: {side} {limit:g}{unit}, measured {self.measured:.4g}{unit}: "
            f"{verdict}"
        )

    def figures(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "name": self.name,
            "measured": self.measured,
            "least": self.least,
            "most": self.most,
            "unit": self.unit,
            "holds": self.holds,
        }


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--json FILE` and `--strict`, which every benchmark takes."""
    parser.add_argument(
        "--json",
        type=writable,
        metavar="FILE",
        help="write the figures and verdicts to this file too",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a bar is missed")


def writable(text: str) -> Path:
    """A file that can be written, for argparse: a bad one is said before the long measuring begins.
    Raises argparse.ArgumentTypeError."""
    path = Path(text)
    folder = path.parent
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder, not a file")
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return path


def at_least(least: int) -> Callable[[str], int]:
    """A whole number that is so large, for argparse: of no rounds there is no median, and of one
    token no rate."""

    def number(text: str) -> int:
        found = int(text)
        if found < least:
            raise argparse.ArgumentTypeError(f"{found} is less than {least}")
        return found

    return number


def wide_console() -> Console:
    """As wide as the terminal; `WIDTH` where there is none."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def write_figures(path: Path | None, figures: Mapping[str, object], bars: Sequence[Bar]) -> None:
    """What `--json` asks for, the bars' verdicts beside the figures; nothing without a path."""
    if path is None:
        return
    content = _finite({**figures, "bars": [bar.figures() for bar in bars]})
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", "utf-8")


def _finite(value: object) -> object:
    """JSON has no NaN and no infinity: figures that are none are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def judge(bars: Sequence[Bar], console: Console, *, is_strict: bool) -> None:
    """Print a line for each. Raises SystemExit(1) where one is missed and that is not allowed: call
    it last, when figures are written."""
    for bar in bars:
        console.print(bar.line(), highlight=False, markup=False, soft_wrap=True)
    num_missed = sum(not bar.holds for bar in bars)
    console.print(f"{len(bars) - num_missed} of {len(bars)} bars hold", highlight=False)
    if is_strict and num_missed:
        sys.exit(1)
