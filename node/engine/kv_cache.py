"""Keys and values of every open sequence, in one allocation made when a span is loaded.

A sequence gets all its slots when it is opened, side by side, so that attention reads a view and
never gathers. The ledger counts (any thread, under the host's lock); the pool places (the engine's
thread, between steps). What the ledger admits always fits the pool: where free slots lie scattered,
the pool moves sequences together.
"""

from collections.abc import Hashable

import torch
from torch import Tensor

from node.engine.device import Device
from plait.errors import OverloadedError


class KvLedger:
    """How many slots are promised, and to whom."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._reserved: dict[Hashable, int] = {}
        self.num_reserved = 0

    def reserve(self, key: Hashable, num_slots: int) -> None:
        """Promise `num_slots` to a new key. Raises OverloadedError(reason="kv_full")."""
        assert key not in self._reserved, f"{key!r} holds slots already"
        free = self.num_slots - self.num_reserved
        if num_slots > free:
            raise OverloadedError(
                f"the KV cache has {free} of {self.num_slots} slots free, {num_slots} are needed",
                reason="kv_full",
            )
        self._reserved[key] = num_slots
        self.num_reserved += num_slots

    def release(self, key: Hashable) -> None:
        """Take a promise back; nothing happens for a key that holds none."""
        self.num_reserved -= self._reserved.pop(key, 0)


class KvPool:
    """The slots themselves: (layers, 2 * kv heads, slots, head_dim), keys before values.

    Memory is allocated, not cleared: a slot is written before it is read.
    """

    def __init__(
        self, *, num_layers: int, num_kv_heads: int, head_dim: int, num_slots: int, device: Device
    ) -> None:
        self.num_kv_heads = num_kv_heads
        self.num_slots = num_slots
        self.cells: Tensor = torch.empty(
            (num_layers, 2 * num_kv_heads, num_slots, head_dim),
            dtype=device.dtype,
            device=device.torch_device,
        )
        self.layers: tuple[Tensor, ...] = self.cells.unbind(0)
        self._starts: dict[Hashable, tuple[int, int]] = {}

    def start_of(self, key: Hashable) -> int | None:
        """First slot of a placed sequence, or None. Valid until the next `place`."""
        placed = self._starts.get(key)
        return None if placed is None else placed[0]

    def place(self, key: Hashable, num_slots: int) -> int:
        """Give `key` adjacent slots, moving others together if it must; returns the first slot."""
        start = self._first_gap(num_slots)
        if start is None:
            self._compact()
            start = self._first_gap(num_slots)
            assert start is not None, "the ledger admitted more than the pool holds"
        self._starts[key] = (start, num_slots)
        return start

    def free(self, key: Hashable) -> None:
        """Give a sequence's slots back; nothing happens for an unknown key."""
        self._starts.pop(key, None)

    def _first_gap(self, num_slots: int) -> int | None:
        at = 0
        for start, length in sorted(self._starts.values()):
            if start - at >= num_slots:
                return at
            at = start + length
        return at if self.num_slots - at >= num_slots else None

    def _compact(self) -> None:
        at = 0
        for key, (start, length) in sorted(self._starts.items(), key=lambda item: item[1]):
            if start != at:
                moved = self.cells[:, :, start : start + length]
                overlaps = start < at + length
                self.cells[:, :, at : at + length] = moved.clone() if overlaps else moved
                self._starts[key] = (at, length)
            at += length
