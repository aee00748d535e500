"""Keys and values of every open sequence, in one allocation made when a span is loaded."""

import torch
from torch import Tensor

from node.engine.device import Device
from node.engine.kernels.rows import HeadKernels, head_kernels
from node.engine.tensor_bytes import num_bytes
from plait.types import KvDtype

CODE_MAX = 127.0


class KvPool:
    """The slots: (layers, 2 * kv heads, slots, head_dim), keys before values. Who has which is the
    business of `node.engine.tables`.

    Numbers are of the device's dtype; or int8 beside `scales`, a float16 for each head and slot,
    (layers, 2 * kv heads, slots): see `coded`. Memory is allocated, not cleared: a slot is written
    before it is read. `kernels` read and write it where they can.
    """

    def __init__(
        self, *, num_layers: int, num_kv_heads: int, head_dim: int, num_slots: int, device: Device
    ) -> None:
        self.num_kv_heads = num_kv_heads
        self.num_slots = num_slots
        self.rows_dtype = device.dtype
        is_coded = device.kv_dtype is KvDtype.INT8
        shape = (num_layers, 2 * num_kv_heads, num_slots)
        self.cells: Tensor = torch.empty(
            (*shape, head_dim),
            dtype=torch.int8 if is_coded else device.dtype,
            device=device.torch_device,
        )
        self.layers: tuple[Tensor, ...] = self.cells.unbind(0)
        self.scales: Tensor | None = None
        self.kernels: HeadKernels | None = None
        if is_coded:
            self.scales = torch.empty(shape, dtype=torch.float16, device=device.torch_device)
        else:
            self.kernels = head_kernels(head_dim, device.dtype, device.torch_device)

    @property
    def num_bytes(self) -> int:
        """Of all slots."""
        return num_bytes(self.cells, self.scales)

    def write(self, layer: int, slots: Tensor, rows: Tensor) -> None:
        """Keys and values (2 * kv heads, rows, head_dim) into `slots` (rows,)."""
        if self.scales is None:
            self.layers[layer].index_copy_(1, slots, rows)
            return
        codes, scales = coded(rows)
        self.layers[layer].index_copy_(1, slots, codes)
        self.scales[layer].index_copy_(1, slots, scales)

    def clear(self) -> None:
        """All zero; for those who read what nobody wrote."""
        self.cells.zero_()
        if self.scales is not None:
            self.scales.zero_()


def coded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(..., head_dim) to int8 codes, and a float16 scale (...) for each vector, by its largest
    number. What is not finite makes the scale so, and shows in whatever is computed from it; codes
    of zeros may be anything."""
    rows = rows.float()
    scales = torch.linalg.vector_norm(rows, ord=torch.inf, dim=-1, keepdim=True).mul_(1 / CODE_MAX)
    codes = torch.div(rows, scales).round_().to(torch.int8)
    return codes, scales.squeeze(-1).half()
