"""However a sequence's slots lie about in the cache, the result is the same."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from node.engine.blocks import runs_of
from node.engine.runner import Runner
from plait.prefixes import BLOCK_TOKENS
from tests.unit.engine.kit import (
    KINDS,
    VOCAB,
    ids_item,
    make_runner,
    make_sequence,
    run_rows,
    tiny_model,
)

NUM_BLOCKS = 12
TOKENS = 5 * BLOCK_TOKENS
_model = cache(tiny_model)


@cache
def _runner(kind: str, gather_decodes: bool) -> Runner:
    model = _model(kind)
    return make_runner(
        model,
        model.spec.whole,
        num_slots=NUM_BLOCKS * BLOCK_TOKENS,
        gather_decodes=gather_decodes,
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    blocks=st.permutations(range(NUM_BLOCKS)),
    cuts=st.lists(st.integers(1, TOKENS - 1), max_size=6),
    ids=st.lists(st.integers(0, VOCAB - 1), min_size=TOKENS, max_size=TOKENS),
    gather_decodes=st.booleans(),
)
def test_random_tables_change_nothing(
    kind: str, blocks: list[int], cuts: list[int], ids: list[int], gather_decodes: bool
) -> None:
    """Two sequences with tables of their own, in chunks that end anywhere, then a decode of
    both."""
    _check(kind, [blocks[:5], blocks[5:10]], sorted(set(cuts)), ids, gather_decodes)


@pytest.mark.parametrize("gather_decodes", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_each_family_over_one_run_few_and_many(kind: str, gather_decodes: bool) -> None:
    """Not left to chance: views, products run by run, copies."""
    ids = [(7 * i) % VOCAB for i in range(TOKENS)]
    for tables in ([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], [[3, 4, 0, 1, 2], [10, 8, 6, 5, 7]]):
        _check(kind, tables, [33, 34], ids, gather_decodes)


def _check(
    kind: str, tables: list[list[int]], cuts: list[int], ids: list[int], gather_decodes: bool
) -> None:
    model, runner = _model(kind), _runner(kind, gather_decodes)
    whole = model.spec.whole
    sequences = [
        make_sequence(whole, name=f"r{i}", kv_tokens=TOKENS, runs=runs_of(table))
        for i, table in enumerate(tables)
    ]
    own = [ids, ids[::-1]]
    rows: list[list[torch.Tensor]] = [[], []]
    ends = [*(cut for cut in cuts if cut < TOKENS - 1), TOKENS - 1, TOKENS]
    begin = 0
    for end in ends:
        items = [
            ids_item(sequence, begin, chosen[begin:end])
            for sequence, chosen in zip(sequences, own, strict=True)
        ]
        for kept, new in zip(rows, run_rows(runner, items), strict=True):
            kept.append(new)
        begin = end
    for kept, chosen in zip(rows, own, strict=True):
        with torch.inference_mode():
            logits = runner.stage.logits(torch.cat(kept))
        torch.testing.assert_close(logits, model.logits(chosen), atol=1e-4, rtol=0)
