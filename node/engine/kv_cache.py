"""Keys and values of every open sequence, in one allocation made when a span is loaded."""

import torch
from torch import Tensor

from node.engine.device import Device


class KvPool:
    """The slots: (layers, 2 * kv heads, slots, head_dim), keys before values. Who has which is the
    business of `node.engine.tables`.

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
