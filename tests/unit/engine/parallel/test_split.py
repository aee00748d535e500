"""Which parts ranks get, and who is told that a group does not fit."""

from dataclasses import replace

import numpy as np
import pytest

from node.engine.parallel.rank_source import RankSource, cut_out
from node.engine.parallel.split import Cut, Split, cut_of, rank_spec, require_even
from plait.errors import ModelError
from plait.models.source import TensorData
from plait.models.tensors import span_tensor_names, tensor_shape
from plait.types import DType
from tests.unit.engine.kit import KINDS, tiny_model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_each_part_has_the_shape_that_the_ranks_layer_wants(kind: str, num_ranks: int) -> None:
    model = tiny_model(kind)
    for rank in range(num_ranks):
        split = Split(rank, num_ranks)
        spec = rank_spec(model.spec, split)
        source = RankSource(model.source(), model.spec, split)
        for name in span_tensor_names(spec, spec.whole):
            assert source.read(name).shape == tensor_shape(spec, name), name


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "num_ranks", "words"),
    [
        (9, 3, 2, "9 attention heads of tiny-llama cannot be divided among 2 ranks: 1, 3, 9 would"),
        (12, 4, 3, "4 key and value heads"),
        (12, 3, 12, "100 MLP columns"),
        (12, 3, 5, "12 attention heads"),
    ],
)
def test_uneven_groups_are_refused_with_what_would_do(
    num_heads: int, num_kv_heads: int, num_ranks: int, words: str
) -> None:
    spec = replace(
        tiny_model("llama").spec,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        intermediate_size=90 if num_heads == 9 else 100,
    )
    with pytest.raises(ModelError, match=words) as refused:
        require_even(spec, num_ranks)
    assert refused.value.code == "group_uneven"
    assert "would do" in refused.value.message


@pytest.mark.parametrize(("num_kv_heads", "num_ranks"), [(4, 2), (2, 2), (2, 4), (1, 4), (2, 8)])
def test_queries_stay_with_their_keys(num_kv_heads: int, num_ranks: int) -> None:
    """Each rank's keys are those its queries look at, in the order in which they look."""
    whole = replace(tiny_model("llama").spec, num_heads=8, num_kv_heads=num_kv_heads, head_dim=1)
    group = whole.num_heads // num_kv_heads
    seen: list[int] = []
    for rank in range(num_ranks):
        split = Split(rank, num_ranks)
        spec = rank_spec(whole, split)
        queries = cut_of(whole, split, "model.layers.0.self_attn.q_proj.weight").rows
        keys = cut_of(whole, split, "model.layers.0.self_attn.k_proj.weight").rows
        assert queries is not None and keys is not None
        of_rank = spec.num_heads // spec.num_kv_heads
        for place, query in enumerate(queries[0]):
            assert keys[0][place // of_rank] == query // group
        seen += queries[0]
    assert seen == list(range(8))


def test_rows_and_columns_of_a_tensor() -> None:
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    whole = TensorData(
        name="w", dtype=DType.FLOAT32, shape=(6, 4), buffer=memoryview(values.tobytes())
    )
    found = cut_out(whole, Cut(rows=(range(4, 6), range(1))))
    assert found.shape == (3, 4)
    assert np.frombuffer(found.buffer, "<f4").tolist() == [*range(16, 24), *range(4)]
    found = cut_out(whole, Cut(columns=range(1, 3)))
    assert np.frombuffer(found.buffer, "<f4").reshape(6, 2)[2].tolist() == [9, 10]


def test_a_bias_behind_a_sum_is_added_once() -> None:
    model = tiny_model("llama-bias")
    name = "model.layers.0.self_attn.o_proj.bias"
    first, second = (RankSource(model.source(), model.spec, Split(r, 2)) for r in range(2))
    assert any(first.read(name).buffer)
    assert not any(second.read(name).buffer)
    assert first.shared_digest == second.shared_digest, "both have read the same"
