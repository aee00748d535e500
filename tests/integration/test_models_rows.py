"""Rows of a remote embedding: in pages, once, and from what is on this machine where they are."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.errors import ModelError
from plait.models import open_source, prefetch, resolve, whole_tensor_names
from plait.models.rows import PAGE_BYTES
from plait.models.tensors import EMBEDDING
from plait.types import LayerSpan
from tests.unit.models.hub_server import HubServer, only_hub
from tests.unit.models.tiny import TinyModel, tiny_model, values_of, write_folder, write_gguf

SOURCE = resolve("org/tiny")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    (tmp_path / "hub").mkdir()
    with only_hub(tmp_path / "hub", tmp_path / "models", monkeypatch) as server:
        yield server


@pytest.fixture
def wide(hub: HubServer) -> TinyModel:
    """20 pages of 1024 rows."""
    model = tiny_model(num_layers=1, vocab_size=20_000)
    write_folder(hub.folder, model)
    return model


def test_a_prompt_costs_a_request_for_each_run_of_pages(hub: HubServer, wide: TinyModel) -> None:
    opened = open_source(SOURCE)
    rows = [5, 600, 1500, 2100, 4200, 9000, 9001, 19_999]
    assert not opened.has_rows(EMBEDDING, rows)
    before, num_before = hub.large_bytes, len(hub.ranges)
    opened.prefetch_rows(EMBEDDING, rows)  # pages 0-2 and 4 (with 3), 8, 19
    assert len(hub.ranges) == num_before + 3
    assert opened.has_rows(EMBEDDING, rows)
    opened.prefetch_rows(EMBEDDING, rows)
    read = opened.read_rows(EMBEDDING, rows)
    assert bytes(read.buffer) == wide.tensors[EMBEDDING][rows].tobytes()
    assert len(hub.ranges) == num_before + 3
    assert len(hub.cdn_connections) == 1
    last_page_bytes = 20_000 * 256 - 19 * PAGE_BYTES
    assert hub.large_bytes - before == 6 * PAGE_BYTES + last_page_bytes
    assert opened.read_bytes == hub.large_bytes
    opened.close()


def test_rows_never_fetched_before_come_when_they_are_read(hub: HubServer, wide: TinyModel) -> None:
    opened = open_source(SOURCE)
    read = opened.read_rows(EMBEDDING, [7, 12_345])
    assert bytes(read.buffer) == wide.tensors[EMBEDDING][[7, 12_345]].tobytes()
    opened.close()


def test_a_restart_without_a_hub_finds_its_rows(
    hub: HubServer, wide: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_source(SOURCE)
    opened.prefetch_rows(EMBEDDING, [7, 12_345])
    opened.close()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    num_requests = len(hub.requests)
    opened = open_source(SOURCE)
    assert opened.has_rows(EMBEDDING, [7, 12_345])
    opened.read_rows(EMBEDDING, [7, 12_345])
    assert len(hub.requests) == num_requests
    opened.close()


def test_a_whole_table_that_is_here_serves_its_rows(hub: HubServer, wide: TinyModel) -> None:
    opened = open_source(SOURCE)
    prefetch(opened, [EMBEDDING], lambda done, total: None)
    num_before = len(hub.ranges)
    rows = [0, 9000, 19_999]
    assert opened.has_rows(EMBEDDING, rows)
    opened.prefetch_rows(EMBEDDING, rows)
    read = opened.read_rows(EMBEDDING, rows)
    assert bytes(read.buffer) == wide.tensors[EMBEDDING][rows].tobytes()
    assert len(hub.ranges) == num_before
    opened.close()


@pytest.mark.parametrize("whole", [False, True])
def test_damage_on_this_disk_is_never_a_row(hub: HubServer, wide: TinyModel, whole: bool) -> None:
    opened = open_source(SOURCE)
    if whole:
        prefetch(opened, [EMBEDDING], lambda done, total: None)
    else:
        opened.prefetch_rows(EMBEDDING, [7])
    pieces = Path(os.environ["PLAIT_MODELS"]).rglob("*.bin")
    path = max(pieces, key=lambda p: p.stat().st_size)
    content = bytearray(path.read_bytes())
    content[7 * 256] ^= 1
    path.write_bytes(content)
    read = opened.read_rows(EMBEDDING, [7])
    assert bytes(read.buffer) == wide.tensors[EMBEDDING][[7]].tobytes()
    opened.close()


def test_a_hub_that_does_not_answer_is_an_error_of_these_rows(
    hub: HubServer, wide: TinyModel
) -> None:
    opened = open_source(SOURCE)
    opened.prefetch_rows(EMBEDDING, [7])
    hub.faults[:] = [404]
    with pytest.raises(ModelError, match="does not have"):
        opened.prefetch_rows(EMBEDDING, [12_345])
    opened.read_rows(EMBEDDING, [7])
    opened.prefetch_rows(EMBEDDING, [12_345])
    assert opened.has_rows(EMBEDDING, [12_345])
    opened.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("span", "share_max"),
    [(LayerSpan(0, 30), 0.45), (LayerSpan(30, 60), 0.32), (LayerSpan(60, 90), 0.63)],
)
def test_a_node_takes_its_layers_and_a_third_of_the_embedding(
    hub: HubServer, span: LayerSpan, share_max: float
) -> None:
    """The embedding is 31 % of the file, as in SmolLM2; the last span needs it as its head. The
    header comes in blocks of a MiB, 6 % of this small file."""
    model = tiny_model(num_layers=90, vocab_size=19_500)
    write_gguf(hub.folder / "even-f32.gguf", model, num_tokens=500)
    opened = open_source(resolve("org/tiny/even-f32.gguf"))
    names = whole_tensor_names(opened.spec, span)
    prefetch(opened, names, lambda done, total: None)
    if span.start == 0:
        opened.prefetch_rows(EMBEDDING, range(opened.spec.vocab_size // 3))
    for name in names:
        assert (values_of(opened, name) == model.tensors[name]).all()
    assert opened.read_bytes == hub.large_bytes
    size = (hub.folder / "even-f32.gguf").stat().st_size
    assert hub.large_bytes <= share_max * size
    opened.close()
