"""Ranks that share a model's layers compute what one holder of them computes."""

import pytest
import torch

from node.engine.kv_cache import KvPool
from node.engine.loader import load_stage
from node.engine.parallel.joins import GroupJoins
from node.engine.parallel.rank_source import RankSource
from node.engine.parallel.split import Split, rank_spec
from node.engine.runner import Runner
from plait.errors import ModelError
from tests.unit.engine.kit import (
    CPU,
    KINDS,
    VOCAB,
    TinyModel,
    ids_item,
    make_runner,
    make_sequence,
    run_rows,
    tiny_model,
)
from tests.unit.engine.parallel.ranks import MemoryCommunicator, Table, side_by_side

TOLERANCE = 1e-4
PLAIN = ("llama-bias", "qwen3", "gemma2", "gpt_oss", "phi3")
"""A family for each way to put a layer together; the others take longer."""

STEPS = (9, 4, 1, 1)
PROMPT = torch.randint(0, VOCAB, (sum(STEPS),), generator=torch.Generator().manual_seed(5)).tolist()


def accepted(model: TinyModel) -> list[int]:
    """Groups of up to four ranks that can share the model."""
    fitting = []
    for num_ranks in (2, 3, 4):
        try:
            rank_spec(model.spec, Split(0, num_ranks))
        except ModelError:
            continue
        fitting.append(num_ranks)
    return fitting


def rank_runner(model: TinyModel, communicator: MemoryCommunicator) -> Runner:
    """One rank's part of the whole model."""
    split, whole = communicator.split, model.spec.whole
    spec = rank_spec(model.spec, split)
    stage = load_stage(
        RankSource(model.source(), model.spec, split),
        spec,
        whole,
        CPU,
        num_positions=model.spec.context_tokens_max,
        cached_rows=8,
        progress=lambda _done, _total: None,
        joins=GroupJoins(communicator, whole_vocab=model.spec.vocab_size),
    )
    pool = KvPool(
        num_layers=len(whole),
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        num_slots=512,
        device=CPU,
    )
    return Runner(stage, pool, CPU)


@torch.inference_mode()
def logits_of(runner: Runner, embedded: torch.Tensor) -> torch.Tensor:
    """(tokens, vocab) of the prompt, in steps."""
    sequence = make_sequence(runner.stage.span, runs=((0, 64),))
    found: list[torch.Tensor] = []
    position = 0
    for length in STEPS:
        item = ids_item(sequence, position, PROMPT[position : position + length])
        (rows,) = runner.forward([item], [embedded[position : position + length]])
        found.append(runner.stage.logits(rows))
        position += length
    return torch.cat(found)


def group_logits(model: TinyModel, num_ranks: int, table: Table | None = None) -> torch.Tensor:
    with torch.inference_mode():
        embedded = make_runner(model, model.spec.whole).stage.embed(PROMPT)

    def rank(communicator: MemoryCommunicator) -> torch.Tensor:
        return logits_of(rank_runner(model, communicator), embedded)

    return side_by_side(table or Table(num_ranks), rank)[0]


@pytest.mark.parametrize(
    "kind",
    [kind if kind in PLAIN else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],
)
def test_every_group_that_is_accepted_gives_one_ranks_logits(kind: str) -> None:
    model = tiny_model(kind)
    alone = make_runner(model, model.spec.whole)
    with torch.inference_mode():
        rows = run_rows(alone, [ids_item(make_sequence(model.spec.whole), 0, PROMPT)])[0]
        expected = alone.stage.logits(rows)
    degrees = accepted(model)
    assert 2 in degrees, "two key and value heads"
    for num_ranks in degrees:
        found = group_logits(model, num_ranks)
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mixtral"])
def test_a_layer_costs_two_sums(kind: str) -> None:
    model = tiny_model(kind)
    table = Table(2)
    group_logits(model, 2, table)
    assert table.num_sums == 2 * model.spec.num_layers * len(STEPS)


def test_ranks_hold_equal_parts_and_no_more() -> None:
    model = tiny_model("llama")

    def held(communicator: MemoryCommunicator) -> int:
        return rank_runner(model, communicator).stage.weight_bytes

    alone = make_runner(model, model.spec.whole, cached_rows=8).stage.weight_bytes
    row = model.spec.hidden_size * 4
    norms = (2 * model.spec.num_layers + 1) * row
    parts = side_by_side(Table(2), held)
    assert sum(parts) == alone + norms, "only norms are held twice"
    assert parts[0] - 8 * row == parts[1] - row, "97 words do not halve; one has the embedding"
