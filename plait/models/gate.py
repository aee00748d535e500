"""What a caller has to say about weights that come over the network: how fast, and onto how much
disk."""

from pathlib import Path

from plait.errors import WeightsError
from plait.models.disk import disk_full, free_bytes
from plait.models.supply import Supply


class Gate:
    """Lets everything through. `supply` is who has weights nearer than their origin, where somebody
    has."""

    supply: Supply | None = None

    def arrived(self, num_bytes: int) -> None:
        """Bytes have come; may hold the thread that fetches."""

    def free_bytes(self, folder: Path) -> int:
        """What may still be written there."""
        return free_bytes(folder)

    def says(self) -> str:
        """What else than the disk stands behind `free_bytes`; "" for nothing."""
        return ""

    def require_space(self, folder: Path, needed_bytes: int) -> None:
        """Raises WeightsError(reason="disk_full") when `needed_bytes` do not fit."""
        if self.free_bytes(folder) >= needed_bytes:
            return
        full = disk_full(folder, needed_bytes, free=self.free_bytes)
        why = self.says()
        raise WeightsError(f"{full.message} ({why})" if why else full.message, reason=full.code)


OPEN = Gate()
