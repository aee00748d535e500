"""The catalogue's model, really pulled: one download for three processes, and what spans read."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.errors import WeightsError
from plait.models import (
    CATALOGUE,
    open_source,
    prefetch,
    pull,
    resolve,
    tokenizer_source,
    verify,
    whole_tensor_names,
)
from plait.models.tensors import EMBEDDING
from plait.types import LayerSpan
from tests.kit.chaos import small_disk
from tests.unit.models.hub_server import HubServer, serve
from tests.unit.models.tiny import tiny_model, write_folder

pytestmark = pytest.mark.slow

NAME = "smollm2-135m-instruct"
PHASES = (
    "from plait.models import pull, resolve\n"
    "phases = []\n"
    "source = pull(resolve('smollm2-135m-instruct'), progress=lambda p, d, t: phases.append(p))\n"
    "print(source.digest, *sorted(set(phases)))\n"
)


@pytest.fixture(scope="module")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder that three processes have filled at once."""
    folder = tmp_path_factory.mktemp("models")
    pullers = [
        subprocess.Popen(
            [sys.executable, "-c", PHASES],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PLAIT_MODELS": str(folder)},
        )
        for _ in range(3)
    ]
    try:
        said = [puller.communicate(timeout=170)[0].split() for puller in pullers]
    finally:
        for puller in pullers:
            puller.kill()
            puller.wait()
    assert len({words[0] for words in said}) == 1, "all see the same digest"
    assert sum("extracting" in words for words in said) == 1, "one of them fetched"
    return folder


def test_the_file_alone_is_kept_and_intact(models_dir: Path) -> None:
    kept = [path.name for path in models_dir.rglob("*") if path.is_file()]
    file_name = CATALOGUE[NAME].file_name
    assert sorted(kept) == sorted([file_name, "plait.json", f"catalogue-{NAME}.lock"])
    assert verify(resolve(NAME), models_dir=models_dir).num_files == 1
    assert tokenizer_source(resolve(NAME), models_dir=models_dir).chat_template is not None


@pytest.mark.parametrize(
    ("span", "share_max"),
    [
        (LayerSpan(10, 20), 0.25),
        (LayerSpan(0, 10), 0.26),  # with rows for a thousand different tokens
        # The tied embedding, 31 % of the file, is the last span's head.
        (LayerSpan(20, 30), 0.551),
    ],
)
def test_a_span_reads_its_own_tensors_only(
    models_dir: Path, span: LayerSpan, share_max: float
) -> None:
    opened = open_source(resolve(NAME), models_dir=models_dir)
    for name in whole_tensor_names(opened.spec, span):
        opened.read(name)
    if span.start == 0:
        opened.read_rows(EMBEDDING, range(1000, 2000))
    share = opened.read_bytes / CATALOGUE[NAME].file_bytes
    opened.close()
    assert share <= share_max
    if span.end < 30:
        assert share <= 0.45


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    with small_disk(tmp_path / "disk", size_bytes=1 << 20) as folder:
        yield folder


def test_a_full_disk_says_what_is_needed_and_keeps_no_part(
    tiny_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "hub", tiny_model(num_layers=12, vocab_size=4000))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with serve(HubServer("org/tiny", tmp_path / "hub")) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with pytest.raises(WeightsError, match="MiB are needed") as caught:
            pull(resolve("org/tiny"), models_dir=tiny_disk)
        opened = open_source(resolve("org/tiny"), models_dir=tiny_disk)
        with pytest.raises(WeightsError, match="MiB are needed"):
            prefetch(opened, sorted(opened.tensor_names()), lambda done, total: None)
        opened.close()
    assert caught.value.code == "disk_full"
    with pytest.raises(WeightsError, match="MiB are needed"):
        pull(resolve(NAME), models_dir=tiny_disk)
    assert [p for p in tiny_disk.rglob("*") if p.suffix in (".part", ".whl")] == []
