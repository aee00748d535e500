"""Every family gives transformers' logits, however its tokens are cut into steps."""

import pytest
import torch

from node.engine.linear import ROWS_MIN
from plait.types import DType
from tests.unit.engine.kit import (
    KINDS,
    VOCAB,
    ids_item,
    make_runner,
    make_sequence,
    run_rows,
    tiny_model,
)

TOLERANCE = 1e-4
PROMPT = torch.randint(0, VOCAB, (21,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_transformers(kind: str) -> None:
    model = tiny_model(kind)
    runner = make_runner(model, model.spec.whole)
    rows = run_rows(runner, [ids_item(make_sequence(model.spec.whole), 0, PROMPT)])[0]
    with torch.inference_mode():
        logits = runner.stage.logits(rows)
    torch.testing.assert_close(logits, model.logits(PROMPT), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [(1,) * 21, (8, 8, 5), (1, 19, 1), (4, 1, 1, 15)])
def test_chunks_equal_the_whole(kind: str, chunks: tuple[int, ...]) -> None:
    model = tiny_model(kind)
    runner = make_runner(model, model.spec.whole)
    sequence = make_sequence(model.spec.whole)
    rows: list[torch.Tensor] = []
    position = 0
    for length in chunks:
        item = ids_item(sequence, position, PROMPT[position : position + length])
        rows += run_rows(runner, [item])
        position += length
    expected = model.hidden_states(PROMPT)[-1]
    torch.testing.assert_close(torch.cat(rows), expected, atol=TOLERANCE, rtol=0)


def test_a_head_that_shares_the_embedding_gives_the_same_logits() -> None:
    model = tiny_model("llama-tied")
    apart = make_runner(model, model.spec.whole)
    shared = make_runner(model, model.spec.whole, cached_rows=None)
    rows = run_rows(apart, [ids_item(make_sequence(model.spec.whole), 0, PROMPT)])[0]
    with torch.inference_mode():
        torch.testing.assert_close(
            shared.stage.logits(rows), apart.stage.logits(rows), atol=TOLERANCE, rtol=0
        )
    assert shared.stage.head_shares_embedding
    assert shared.stage.rows_min >= ROWS_MIN, "plain products of fewer rows sum up otherwise"
    expected_bytes = model.spec.weight_bytes(model.spec.whole, DType.FLOAT32)
    assert shared.stage.weight_bytes == expected_bytes
