"""Which chains hold the beginning of a prompt already, and when that is worth a detour.

Two choices: the chain that holds the most of the prompt, and the cheapest one. Affinity wins while
what it saves is not eaten by the load it meets, so one popular prefix does not heat one chain (the
idea of DualMap, arXiv 2602.06502, with prices in place of hashes for the second choice).
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from plait.prefixes import BLOCK_TOKENS
from plait.types import NodeId, Route

ENTRIES_MAX: Final = 4_096
CHAINS_PER_BLOCK_MAX: Final = 8
BALANCE: Final = 1.25
"""An affine chain may cost this much of the cheapest, its saving counted."""

ChainKey = Route
"""With spans and incarnations: a node that moved or was started anew holds nothing of before."""


class PrefixIndex:
    """Rolling hashes of prompts' first blocks, and the chain that ran each last.

    A block's hash covers everything before it, so the longest known one tells how much is held.
    Bounded: the blocks that nobody asked for longest are forgotten.
    """

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._held: OrderedDict[int, dict[ChainKey, None]] = OrderedDict()

    def remember(self, blocks: Sequence[int], chain: ChainKey) -> None:
        """Every stage of `chain` ran a prompt with these blocks."""
        for block in blocks:
            chains = self._held.setdefault(block, {})
            chains.pop(chain, None)
            chains[chain] = None
            if len(chains) > CHAINS_PER_BLOCK_MAX:
                del chains[next(iter(chains))]
            self._held.move_to_end(block)
        while len(self._held) > self._entries_max:
            self._held.popitem(last=False)

    def forget(self, node_id: NodeId) -> None:
        """A node left or lost its cache: its chains hold nothing any more."""
        for block in list(self._held):
            chains = self._held[block]
            for chain in [chain for chain in chains if any(s.node_id == node_id for s in chain)]:
                del chains[chain]
            if not chains:
                del self._held[block]

    def held_tokens(self, blocks: Sequence[int]) -> dict[ChainKey, int]:
        """By chain: tokens of the prompt's beginning that all of its stages hold."""
        found: dict[ChainKey, int] = {}
        for number, block in enumerate(blocks, 1):
            chains = self._held.get(block)
            if not chains:
                break
            for chain in chains:
                if found.get(chain, 0) == (number - 1) * BLOCK_TOKENS:
                    found[chain] = number * BLOCK_TOKENS
        return found


def two_choices(
    totals: Sequence[float], saved_ms: Mapping[int, float], cheapest: int
) -> tuple[int, bool]:
    """The place in `totals` to take, and whether affinity decided. `saved_ms` is what each chain
    that holds part of the prompt would not have to run."""
    most_ms, least_ms = totals[cheapest] * BALANCE, totals[cheapest]
    best = cheapest
    for place, saving in sorted(saved_ms.items()):
        if totals[place] <= most_ms and totals[place] - saving < least_ms:
            best, least_ms = place, totals[place] - saving
    return best, best in saved_ms
