"""From token ids to rows: looked up in the weights' file as they are needed, or in a table.

A prompt and its answer use some hundred of a vocabulary's rows, a few thousand make up most of any
text. So a first stage keeps those that it saw last, in plain memory, and neither reads nor holds
the table: 2.4 GB of a card's memory for a model of 72 billion parameters.
"""

import ctypes
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.background import JobDone
from node.engine.device import Device
from node.engine.row_fetcher import RowFetcher
from node.engine.tensor_bytes import is_finite, num_bytes, tensor_from_bytes
from plait.errors import WeightsError
from plait.models.source import TensorSource
from plait.models.tensors import EMBEDDING
from plait.types import ModelSpec

WARM_ROWS_MAX = 16_384
_WARM_SHARE = 3
"""Of remote weights, rows that are fetched with the layers: a third of the vocabulary at most. Ids
rise with rarity, and these are nine in ten tokens of English text or code."""


class Embedding(Protocol):
    """(T,) token ids below vocab_size to new rows (T, hidden) on the device."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of parameters in memory, at most."""
        ...

    def __call__(self, token_ids: Sequence[int]) -> Tensor: ...

    def prepare(self, token_ids: Sequence[int], done: JobDone) -> bool:
        """Whether these rows are on this machine. Where not they are fetched, and `done` is called
        from another thread: with None, or with what went wrong.

        Raises OverloadedError(reason="queue_full") where too many fetches wait.
        """
        ...

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        ...


class TableEmbedding:
    """A table (vocab, hidden) on the device, which the LM head uses too."""

    def __init__(self, table: Tensor) -> None:
        self._table = table

    @property
    def weight_bytes(self) -> int:
        return num_bytes(self._table)

    def __call__(self, token_ids: Sequence[int]) -> Tensor:
        return F.embedding(torch.tensor(token_ids, device=self._table.device), self._table)

    def prepare(self, token_ids: Sequence[int], done: JobDone) -> bool:
        return True

    def close(self) -> None:
        return


class RowEmbedding:
    """Rows read from `source`, which it owns; the last used `cached_rows` stay in memory.

    A row is the table's, bit for bit. Calls raise WeightsError where the file was cut or changed
    since it was opened, and where a row holds NaN or infinities. One thread calls.
    """

    def __init__(
        self, source: TensorSource, spec: ModelSpec, device: Device, *, cached_rows: int
    ) -> None:
        self._source = source
        self._device = device
        self._hidden_size = spec.hidden_size
        self._cached_rows = min(cached_rows, spec.vocab_size)
        self._rows = torch.empty((self._cached_rows, spec.hidden_size), dtype=device.dtype)
        self._slots: OrderedDict[int, int] = OrderedDict()
        self._fetcher = RowFetcher(lambda ids: source.prefetch_rows(EMBEDDING, ids))

    @property
    def weight_bytes(self) -> int:
        return num_bytes(self._rows)

    def __call__(self, token_ids: Sequence[int]) -> Tensor:
        rows = self._lookup(token_ids)
        return rows if self._device.kind == "cpu" else rows.to(self._device.torch_device)

    def prepare(self, token_ids: Sequence[int], done: JobDone) -> bool:
        if self._source.has_rows(EMBEDDING, token_ids):
            return True
        self._fetcher.ask(sorted(set(token_ids)), done)
        return False

    def close(self) -> None:
        self._fetcher.close()
        self._source.close()

    def _lookup(self, token_ids: Sequence[int]) -> Tensor:
        """(T,) to new rows (T, hidden) in the computed dtype, in plain memory."""
        if len(token_ids) == 1 and (slot := self._slots.get(token_ids[0])) is not None:
            self._slots.move_to_end(token_ids[0])
            return self._copy_of(slot)
        distinct = dict.fromkeys(token_ids)
        if len(distinct) > self._cached_rows:
            ordered = sorted(distinct)
            places = {token: place for place, token in enumerate(ordered)}
            return self._read(ordered)[[places[token] for token in token_ids]]
        slots = self._slots
        missing = sorted(token for token in distinct if token not in slots)
        for token in distinct:
            if token in slots:
                slots.move_to_end(token)
        if missing:
            fresh = self._read(missing)
            for token in missing:
                is_full = len(slots) == self._cached_rows
                slots[token] = slots.popitem(last=False)[1] if is_full else len(slots)
            self._rows[[slots[token] for token in missing]] = fresh
        return self._rows[[slots[token] for token in token_ids]]

    def _copy_of(self, slot: int) -> Tensor:
        """(1, hidden): a decode's row, by one call instead of several of torch's."""
        row = self._rows.new_empty((1, self._hidden_size))
        ctypes.memmove(row.data_ptr(), self._rows.data_ptr() + slot * row.nbytes, row.nbytes)
        return row

    def _read(self, token_ids: list[int]) -> Tensor:
        stored = self._source.read_rows(EMBEDDING, token_ids)
        shape = (len(token_ids), self._hidden_size)
        try:
            rows = tensor_from_bytes(stored.buffer, stored.dtype, shape).to(self._device.dtype)
        except ValueError as error:
            raise WeightsError(f"{EMBEDDING} is truncated: {error}") from error
        if not is_finite(rows):
            raise WeightsError(
                f"{EMBEDDING} holds NaN or infinite values", reason="weights_not_finite"
            )
        return rows


def warm_rows(spec: ModelSpec) -> range:
    """Rows of remote weights that are worth fetching before the first prompt."""
    return range(min(WARM_ROWS_MAX, max(1, spec.vocab_size // _WARM_SHARE)))
