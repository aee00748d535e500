"""Where bytes of a remote file come from beside its origin: what a node asks of its neighbours."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from plait.errors import WeightsError
from plait.models.pieces import PieceFolder
from plait.models.records import FileRecord
from plait.types import ModelSource

NOT_HERE: Final = "weights_not_here"
"""The reason where neither this machine nor a neighbour has bytes, and the origin is not asked."""

FetchFromOrigin = Callable[[Sequence[tuple[int, int]]], Iterator[int]]
"""Brings ranges [start, end) from the origin into the pieces; yields the bytes of each."""

Advanced = Callable[[int], None]
"""Hears bytes of ranges that are here now; 0 now and then while nothing comes."""


@dataclass(frozen=True, slots=True)
class Description:
    """A model as its coordinator pinned it. `small` are files by name, whole."""

    commit: str
    files: tuple[FileRecord, ...]
    small: tuple[tuple[str, bytes], ...]


class Supply(Protocol):
    """Asked in the thread that fetches, which it holds."""

    @property
    def is_offline(self) -> bool:
        """Whether the origin is never to be asked."""
        ...

    def describe(self, source: ModelSource) -> Description | None:
        """None where nobody says; the origin is asked then."""
        ...

    def bring(
        self,
        content_id: str,
        pieces: PieceFolder,
        missing: Sequence[tuple[int, int]],
        *,
        fetch: FetchFromOrigin,
        advanced: Advanced,
        is_urgent: bool = False,
    ) -> None:
        """Have ranges [start, end) in `pieces`. Raises WeightsError, ModelError."""
        ...


class NothingNear:
    """The supply of a machine that may ask nobody: what is on it has to do."""

    is_offline = True

    def describe(self, source: ModelSource) -> Description | None:
        return None

    def bring(
        self,
        content_id: str,
        pieces: PieceFolder,
        missing: Sequence[tuple[int, int]],
        *,
        fetch: FetchFromOrigin,
        advanced: Advanced,
        is_urgent: bool = False,
    ) -> None:
        """Raises WeightsError(reason="weights_not_here")."""
        size = sum(end - start for start, end in missing)
        raise WeightsError(
            f"{size / 1e6:.1f} MB are not on this machine, and it asks no hub (--offline)",
            reason=NOT_HERE,
        )
