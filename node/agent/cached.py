"""Layers whose weights lie on this node's disk: remembered over restarts, told in the hello."""

import json
from pathlib import Path
from typing import Final

from plait import log
from plait.errors import WeightsError
from plait.models.disk import write_small
from plait.models.records import catalogue_folder, hub_folder
from plait.types import (
    CachedSpan,
    HeldSpan,
    LayerSpan,
    ModelId,
    ModelSource,
    ModelSpec,
    SourceKind,
    merged,
)

FILE: Final = "cached.json"
SPANS_MAX: Final = 64
"""More are not told; the ones loaded last stay."""

_log = log.get("node")


class CachedLayers:
    """Kept in `home`; each span beside the folder or file that holds its weights. Where that is
    gone, so is the span. It is a hint: whatever it says, nodes read and check what they load."""

    def __init__(self, home: Path, models_dir: Path) -> None:
        self._path = home / FILE
        self._models_dir = models_dir
        self._known = self._read()

    def spans(self) -> tuple[CachedSpan, ...]:
        """What is here now, as few spans as possible."""
        here = [cached for cached, where in self._known if Path(where).exists()]
        return merged(here)[:SPANS_MAX]

    def keep(self, held: HeldSpan, spec: ModelSpec, source: ModelSource) -> None:
        """A span was loaded: its weights came from this disk, or are on it now. Of a model that
        was here as a whole, all layers are."""
        is_part = source.kind is SourceKind.HUB
        cached = CachedSpan(
            model_id=held.model_id, span=held.span if is_part else spec.whole, digest=held.digest
        )
        entry = (cached, str(self._where(source)))
        if entry in self._known:
            return
        self._known = [*(e for e in self._known if e != entry), entry][-SPANS_MAX:]
        self._write()

    def _where(self, source: ModelSource) -> Path:
        match source.kind:
            case SourceKind.HUB:
                return hub_folder(self._models_dir, source.name)
            case SourceKind.CATALOGUE:
                return catalogue_folder(self._models_dir, source.name)
            case SourceKind.PATH:
                return Path(source.name).absolute()

    def _read(self) -> list[tuple[CachedSpan, str]]:
        try:
            entries = json.loads(self._path.read_bytes())
            return [
                (
                    CachedSpan(
                        model_id=ModelId(str(entry["model_id"])),
                        span=LayerSpan(int(entry["start"]), int(entry["end"])),
                        digest=str(entry["digest"]),
                    ),
                    str(entry["where"]),
                )
                for entry in entries
            ][-SPANS_MAX:]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("cached_layers_forgotten", message=str(error))
            return []

    def _write(self) -> None:
        entries = [
            {
                "model_id": cached.model_id,
                "start": cached.span.start,
                "end": cached.span.end,
                "digest": cached.digest,
                "where": where,
            }
            for cached, where in self._known
        ]
        try:
            write_small(self._path, json.dumps(entries, indent=1).encode())
        except (OSError, WeightsError) as error:  # a hint is never worth a node
            _log.warning("cached_layers_not_kept", message=str(error))
