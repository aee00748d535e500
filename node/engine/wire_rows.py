"""Hidden states to and from what a hop carries, in the dtype that the ticket names for it."""

import torch
from torch import Tensor

from node.core.messages import ROWS_INVALID
from node.engine.device import torch_dtype
from node.engine.int8_rows import decode_rows, encode_rows
from node.engine.tensor_bytes import bytes_of, is_finite, tensor_from_bytes
from plait.errors import FrameError
from plait.types import DType


def rows_to_wire(rows: Tensor, dtype: DType) -> bytes | None:
    """(tokens, hidden) on any device -> its bytes; None where a number is not finite, or too large
    for the dtype."""
    if dtype is DType.INT8:
        try:
            return encode_rows(rows.float().cpu().numpy())
        except ValueError:
            return None
    sent_dtype = torch_dtype(dtype)
    sent = rows if rows.is_cpu and rows.dtype is sent_dtype else rows.to(sent_dtype).cpu()
    return bytes_of(sent) if is_finite(sent) else None


def rows_from_wire(
    payload: bytes | memoryview, dtype: DType, *, num_tokens: int, hidden_size: int
) -> Tensor:
    """A neighbour's bytes -> (tokens, hidden) on the CPU. Raises FrameError(reason=ROWS_INVALID)
    for bytes that are no rows."""
    try:
        if dtype is DType.INT8:
            return torch.from_numpy(decode_rows(payload, num_tokens, hidden_size))
        return tensor_from_bytes(payload, dtype, (num_tokens, hidden_size))
    except ValueError as error:
        raise FrameError(f"rows that cannot be read: {error}", reason=ROWS_INVALID) from None
