"""Rows looked up one by one are the table's, whatever is kept and whatever was asked before."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.engine.embedding import WARM_ROWS_MAX, RowEmbedding, TableEmbedding, warm_rows
from node.engine.runner import Runner
from plait.errors import PlaitError, WeightsError
from plait.models.source import TensorData
from plait.models.tensors import EMBEDDING
from plait.types import LayerSpan
from tests.unit.engine.kit import (
    CPU,
    VOCAB,
    MemorySource,
    ids_item,
    make_runner,
    make_sequence,
    tiny_model,
)

MODEL = tiny_model("llama")
TABLE = MODEL.source().tensors[EMBEDDING]
ROW_BYTES = MODEL.spec.hidden_size * 4
DEADLINE_S = 10.0


def embedding(source: MemorySource, cached_rows: int) -> RowEmbedding:
    return RowEmbedding(source, MODEL.spec, CPU, cached_rows=cached_rows)


@given(
    st.sampled_from([0, 1, 5, 20, 1000]),
    st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30), max_size=12),
)
def test_any_texts_get_the_tables_rows(cached_rows: int, texts: list[list[int]]) -> None:
    rows = embedding(MODEL.source(), cached_rows)
    table = TableEmbedding(TABLE)
    given_out = [rows(text) for text in texts]
    for text, given_rows in zip(texts, given_out, strict=True):  # later texts change none of them
        assert torch.equal(given_rows, TABLE[text])
        assert torch.equal(table(text), TABLE[text])


def test_kept_rows_are_not_read_again_and_the_least_recent_go_first() -> None:
    source = MODEL.source()
    rows = embedding(source, 3)
    rows([1, 2, 3])
    rows([1])
    assert source.read_bytes == 3 * ROW_BYTES
    rows([4])  # for 2, which was used longest ago
    rows([1, 3, 4])
    assert source.read_bytes == 4 * ROW_BYTES
    rows([2])
    assert source.read_bytes == 5 * ROW_BYTES


def test_no_more_is_held_than_was_allowed_nor_than_there_is() -> None:
    assert embedding(MODEL.source(), 3).weight_bytes == 3 * ROW_BYTES
    assert embedding(MODEL.source(), 10_000).weight_bytes == VOCAB * ROW_BYTES


class BrokenSource(MemorySource):
    """Cannot read row 13 any more, and has not got row 14 here."""

    def read_rows(self, name: str, rows: Sequence[int]) -> TensorData:
        if 13 in rows:
            raise WeightsError("it was changed", reason="weights_changed")
        return super().read_rows(name, rows)

    def has_rows(self, name: str, rows: Sequence[int]) -> bool:
        return 14 not in rows

    def prefetch_rows(self, name: str, rows: Sequence[int]) -> None:
        raise WeightsError("nobody answers", reason="weights_unavailable")


def broken() -> BrokenSource:
    return BrokenSource(MODEL.spec, MODEL.source().tensors)


def test_a_failed_lookup_leaves_what_is_kept_as_it_was() -> None:
    rows = embedding(broken(), 4)
    rows([1, 2, 3, 4])
    with pytest.raises(WeightsError):
        rows([1, 13])
    assert torch.equal(rows([4, 3, 2, 1, 5]), TABLE[[4, 3, 2, 1, 5]])


def test_a_row_that_cannot_be_read_fails_its_request_alone() -> None:
    span = LayerSpan(0, 1)
    whole = make_runner(MODEL, span)
    stage = replace(whole.stage, embedding=embedding(broken(), 8))
    runner = Runner(stage, whole.pool, CPU)
    fine, hit = make_sequence(span, name="fine"), make_sequence(span, name="hit")
    results = runner.run([ids_item(hit, 0, [12, 13]), ids_item(fine, 0, [1, 2, 3])])
    assert results[0].error is not None and results[0].error.code == "weights_changed"
    assert results[0].hidden is None
    assert results[1].error is None
    alone = make_runner(MODEL, span).run([ids_item(make_sequence(span), 0, [1, 2, 3])])
    assert results[1].hidden == alone[0].hidden


def test_what_is_here_needs_no_fetch_and_what_is_not_says_how_that_went() -> None:
    rows = embedding(broken(), 4)
    heard: list[PlaitError | None] = []
    is_heard = threading.Event()

    def done(error: PlaitError | None) -> None:
        heard.append(error)
        is_heard.set()

    assert rows.prepare([1, 2], done)
    assert not rows.prepare([14], done)
    assert is_heard.wait(DEADLINE_S)
    assert heard[0] is not None and heard[0].code == "weights_unavailable"
    rows.close()


def test_closing_lets_go_of_the_weights() -> None:
    source = MODEL.source()
    rows = embedding(source, 4)
    rows.close()
    rows.close()
    assert source.is_closed


def test_a_third_of_the_vocabulary_is_fetched_first() -> None:
    assert warm_rows(MODEL.spec) == range(VOCAB // 3)
    assert warm_rows(replace(MODEL.spec, vocab_size=150_000)) == range(WARM_ROWS_MAX)
