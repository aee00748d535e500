"""What a plan moves against the one that stands: for people and for programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plait.cli.plan_current import listed
from plait.cli.plan_output import counted

if TYPE_CHECKING:
    from rich.console import Console

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Held:
    """Layers [start, end) of a model."""

    model: str
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.start}-{self.end - 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A node's layers before and after (None: it stands by), and the weights that it reads."""

    node: str
    before: Held | None
    after: Held | None
    read_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """All that changes. `anew_*` is what the pool planned from nothing would carry and cost; None
    where it was not asked or there is none."""

    shifts: tuple[Shift, ...]
    gone: tuple[str, ...]
    joined: tuple[str, ...]
    num_kept: int
    anew_tokens_per_s: float | None = None

    @property
    def num_moved(self) -> int:
        """Nodes that hold others of the pool's layers, or none, afterwards."""
        return sum(shift.before is not None for shift in self.shifts)

    @property
    def read_bytes(self) -> int:
        """Weights that are read by all."""
        return sum(shift.read_bytes for shift in self.shifts)


def moves_json(moves: Moves) -> dict[str, object]:
    """As plain data."""
    return {
        "moves": [
            {
                "node": shift.node,
                "before": _plain(shift.before),
                "after": _plain(shift.after),
                "read_bytes": shift.read_bytes,
            }
            for shift in moves.shifts
        ],
        "moved_nodes": moves.num_moved,
        "kept_nodes": moves.num_kept,
        "read_bytes": moves.read_bytes,
        "gone": list(moves.gone),
        "joined": list(moves.joined),
        "anew_tokens_per_s": (
            None if moves.anew_tokens_per_s is None else round(moves.anew_tokens_per_s, 3)
        ),
    }


def show_moves(console: "Console", moves: Moves) -> None:
    """Who reads what, and what that comes to."""
    from rich.table import Table
    from rich.text import Text

    if moves.shifts:
        models = {h.model for s in moves.shifts for h in (s.before, s.after) if h is not None}
        table = Table("node", "held", "holds then", "reads")
        for shift in moves.shifts:
            table.add_row(
                Text(shift.node),
                Text(_said(shift.before, "-", is_named=len(models) > 1)),
                Text(_said(shift.after, "stands by", is_named=len(models) > 1)),
                f"{shift.read_bytes / GIB:.2f} GiB" if shift.read_bytes else "",
            )
        console.print(table)
    came = sum(shift.before is None for shift in moves.shifts)
    console.print(
        f"{counted(moves.num_moved, 'node moves', 'nodes move')}, {moves.num_kept} keep what they "
        f"hold, {counted(came, 'other is given layers', 'others are given layers')}; "
        f"{moves.read_bytes / GIB:.2f} GiB are read"
    )
    for names, what in ((moves.gone, "gone"), (moves.joined, "new")):
        if names:
            console.print(Text(f"{what}: {listed(names)}"))
    if moves.anew_tokens_per_s is not None:
        console.print(f"planned anew, the pool would carry {moves.anew_tokens_per_s:.1f} tokens/s")


def _plain(held: Held | None) -> dict[str, object] | None:
    if held is None:
        return None
    return {"model": held.model, "start": held.start, "end": held.end}


def _said(held: Held | None, nothing: str, *, is_named: bool) -> str:
    if held is None:
        return nothing
    return f"{held.model} {held}" if is_named else str(held)


def shifts_of(
    order: Sequence[str], before: dict[str, Held], after: dict[str, Held], reads: dict[str, int]
) -> tuple[Shift, ...]:
    """Nodes of `order` whose layers change."""
    return tuple(
        Shift(
            node=node,
            before=before.get(node),
            after=after.get(node),
            read_bytes=reads.get(node, 0),
        )
        for node in order
        if before.get(node) != after.get(node)
    )
