"""Single rows of a matrix: the table's bits, no bytes beside them, and no row of another file."""

import itertools
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import WeightsError
from plait.models import TensorSource, open_source
from plait.models.rows import PAGE_BYTES, RowTable, row_runs
from plait.models.tensors import EMBEDDING
from tests.unit.models.tiny import tiny_model, write_folder, write_gguf

Q = gguf.GGMLQuantizationType
ROWS = [0, 1, 2, 40, 41, 95]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


def table_rows(opened: TensorSource, rows: list[int]) -> bytes:
    """The rows out of the whole table."""
    whole = opened.read(EMBEDDING)
    matrix = np.frombuffer(whole.buffer, dtype=np.uint8).reshape(whole.shape[0], -1)
    return matrix[rows].tobytes()


@pytest.mark.parametrize("quant", [Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_1, Q.Q5_0])
def test_rows_of_a_gguf_are_the_tables_bit_for_bit(
    path: Path, quant: gguf.GGMLQuantizationType
) -> None:
    opened = open_source(write_gguf(path, tiny_model(), quant=quant))
    rows = opened.read_rows(EMBEDDING, ROWS)
    assert rows.shape == (len(ROWS), 64)
    assert bytes(rows.buffer) == table_rows(opened, ROWS)
    opened.close()


@pytest.mark.parametrize("num_files", [1, 3])
def test_rows_of_safetensors_are_the_tables(tmp_path: Path, num_files: int) -> None:
    opened = open_source(write_folder(tmp_path, tiny_model(), num_files=num_files))
    assert bytes(opened.read_rows(EMBEDDING, ROWS).buffer) == table_rows(opened, ROWS)
    opened.close()


def test_no_byte_is_read_beside_the_rows(path: Path) -> None:
    opened = open_source(write_gguf(path, tiny_model(), quant=Q.Q8_0))
    before = opened.read_bytes
    opened.read_rows(EMBEDDING, ROWS)
    assert opened.read_bytes - before == len(ROWS) * 64 // 32 * 34
    assert opened.has_rows(EMBEDDING, ROWS)
    opened.prefetch_rows(EMBEDDING, ROWS)
    assert opened.read_bytes - before == len(ROWS) * 64 // 32 * 34
    opened.close()


def test_a_file_cut_under_a_reader_gives_an_error_and_no_row(path: Path) -> None:
    opened = open_source(write_gguf(path, tiny_model()))
    opened.read_rows(EMBEDDING, [3])
    os.truncate(path, 4096)
    with pytest.raises(WeightsError, match="shorter") as cut:
        opened.read_rows(EMBEDDING, [95])
    assert cut.value.code == "weights_truncated"
    opened.close()


def test_a_file_written_over_under_a_reader_gives_an_error_and_no_row(path: Path) -> None:
    opened = open_source(write_gguf(path, tiny_model()))
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(WeightsError, match="changed while it was in use") as changed:
        opened.read_rows(EMBEDDING, [3])
    assert changed.value.code == "weights_changed"
    opened.close()


def test_another_file_under_the_same_name_changes_nothing(path: Path) -> None:
    opened = open_source(write_gguf(path, tiny_model()))
    expected = table_rows(opened, ROWS)
    other = path.with_name("other.gguf")
    other.write_bytes(bytes(path.stat().st_size))
    other.replace(path)
    assert bytes(opened.read_rows(EMBEDDING, ROWS).buffer) == expected
    opened.close()


def test_a_row_that_is_not_finite_is_refused_and_its_neighbours_are_not(path: Path) -> None:
    model = tiny_model()
    model.tensors[EMBEDDING][41, 5] = np.nan
    opened = open_source(write_gguf(path, model))
    opened.read_rows(EMBEDDING, [40, 42])
    with pytest.raises(WeightsError, match="embed_tokens") as refused:
        opened.read_rows(EMBEDDING, [40, 41])
    assert refused.value.code == "weights_not_finite"
    opened.close()


@given(st.sets(st.integers(0, 60)))
def test_runs_cover_the_rows_and_nothing_else(rows: set[int]) -> None:
    runs = list(row_runs(sorted(rows)))
    assert [row for start, end in runs for row in range(start, end)] == sorted(rows)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(runs))


@given(st.sets(st.integers(0, 999), min_size=1), st.booleans())
def test_pages_hold_the_rows_and_stay_in_the_table(rows: set[int], fill_gaps: bool) -> None:
    table = RowTable(offset=77, num_rows=1000, row_bytes=5000)
    pages = table.pages(rows, fill_gaps=fill_gaps)
    assert pages == sorted(set(pages)) and pages[-1][0] + pages[-1][1] <= table.end
    assert all(size <= PAGE_BYTES for _, size in pages)
    for row in rows:
        start = table.offset + row * table.row_bytes
        assert any(at <= start and start + table.row_bytes <= at + size for at, size in pages)


def test_a_page_between_two_wanted_ones_comes_along() -> None:
    table = RowTable(offset=0, num_rows=100, row_bytes=PAGE_BYTES)
    assert [at // PAGE_BYTES for at, _ in table.pages([9, 2, 4], fill_gaps=True)] == [2, 3, 4, 9]
    assert len(table.pages([9, 2, 4])) == 3
