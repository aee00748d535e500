"""Keys and values kept as int8: near the numbers themselves, whatever way a step looks at them."""

from dataclasses import replace

import pytest
import torch

from node.engine.coded_sight import CodedSight, Pieces
from node.engine.kv_cache import CODE_MAX, KvPool, coded
from node.engine.layers.coded_attention import attend_coded
from node.engine.layers.scores import ScoreRule, weigh
from plait.types import DType, KvDtype
from tests.unit.engine.kit import (
    CPU,
    VOCAB,
    ids_item,
    make_runner,
    make_sequence,
    run_rows,
    tiny_model,
)

INT8 = replace(CPU, kv_dtype=KvDtype.INT8)
KINDS = ("llama", "qwen2", "mistral", "gemma2", "gemma3", "gpt_oss")
"""Groups of heads, biased keys, windows, a soft cap, windows in some layers, sinks."""

HEADS, KV_HEADS, WIDTH = 6, 2, 8
PROMPT = torch.randint(0, VOCAB, (40,), generator=torch.Generator().manual_seed(3)).tolist()


def pool_of(num_slots: int) -> KvPool:
    """One layer whose slots are all written."""
    torch.manual_seed(5)
    pool = KvPool(
        num_layers=1, num_kv_heads=KV_HEADS, head_dim=WIDTH, num_slots=num_slots, device=INT8
    )
    pool.write(0, torch.arange(num_slots), torch.randn(2 * KV_HEADS, num_slots, WIDTH))
    return pool


def plainly(
    pool: KvPool, queries: torch.Tensor, pieces: Pieces, rule: ScoreRule | None
) -> torch.Tensor:
    """One sequence's rows, the last ones of its tokens: (rows, heads, width) by one softmax."""
    assert pool.scales is not None
    slots = torch.cat([torch.arange(first, end) for first, end in pieces])
    cells = pool.layers[0][:, slots].float() * pool.scales[0][:, slots].float().unsqueeze(-1)
    keys, values = torch.split(cells.repeat_interleave(HEADS // KV_HEADS, 0), HEADS)
    num_rows, num_seen = len(queries), len(slots)
    mask = torch.arange(num_seen) <= torch.arange(num_seen - num_rows, num_seen).unsqueeze(1)
    scores = (queries.transpose(0, 1) @ keys.transpose(1, 2)) * 0.5
    if rule is None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.matmul(weigh(scores, rule, mask), values).transpose(0, 1)


@pytest.mark.parametrize("largest", [1e-6, 1e-3, 1.0, 3e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_are_half_a_code_off(largest: float, dtype: torch.dtype) -> None:
    rows = torch.rand(3, 50, 16).sub_(0.5).mul_(2 * largest).to(dtype)
    codes, scales = coded(rows)
    rows = rows.float()
    units = rows.abs().amax(-1, keepdim=True) / CODE_MAX
    off = (codes.float() * scales.float().unsqueeze(-1) - rows).abs()
    # A float16 scale is within 2^-11 of itself, or 2^-25 where it is tiny.
    rounding = CODE_MAX * (units * 2**-11).clamp_(min=2**-25)
    assert bool((off <= 0.5001 * units + rounding).all())
    assert bool((codes.abs() <= CODE_MAX).all())


def test_zeros_stay_zero_and_what_is_not_finite_shows() -> None:
    rows = torch.zeros(3, 4)
    rows[1, 2], rows[2, 0] = torch.inf, torch.nan
    codes, scales = coded(rows)
    dense = codes.float() * scales.float().unsqueeze(-1)
    assert bool((dense[0] == 0).all())
    assert not bool(torch.isfinite(dense[1]).any()) and not bool(torch.isfinite(dense[2]).any())


@pytest.mark.parametrize("num_rows", [1, 5])
@pytest.mark.parametrize(
    "rule",
    [None, ScoreRule(softcap=2.0), ScoreRule(sinks=torch.linspace(-2, 3, HEADS))],
    ids=["plain", "cap", "sinks"],
)
@pytest.mark.parametrize("wide_max", [None, 16 * KV_HEADS * WIDTH], ids=["whole", "blocks"])
def test_blocks_give_what_one_softmax_gives(
    num_rows: int, rule: ScoreRule | None, wide_max: int | None
) -> None:
    pool = pool_of(160)
    pieces = [(96, 112), (16, 64), (144, 150)]
    queries = torch.randn(num_rows, HEADS, WIDTH)
    ends = torch.arange(70 - num_rows, 70).unsqueeze(1)
    sight = CodedSight(
        pool,
        [pieces],
        row=0,
        num_tokens=num_rows,
        num_heads=HEADS,
        hidden=torch.arange(70) > ends if num_rows > 1 else None,
        wide_max=wide_max,
    )
    assert (sight.num_blocks > 1) is (wide_max is not None)
    found = attend_coded(queries, sight, 0, rule, num_kv_heads=KV_HEADS, scale=0.5)
    torch.testing.assert_close(found, plainly(pool, queries, pieces, rule), atol=1e-5, rtol=0)


@pytest.mark.parametrize("wide_max", [None, 2 * 16 * KV_HEADS * WIDTH], ids=["whole", "blocks"])
def test_decodes_of_several_are_attended_to_together(wide_max: int | None) -> None:
    pool, rule = pool_of(160), ScoreRule(sinks=torch.linspace(-2, 3, HEADS))
    pieces: list[Pieces] = [[(0, 37)], [(64, 80), (48, 51)]]
    queries = torch.randn(2, HEADS, WIDTH)
    lengths = torch.tensor([37, 19]).unsqueeze(1)
    sight = CodedSight(
        pool,
        pieces,
        row=0,
        num_tokens=1,
        num_heads=HEADS,
        hidden=(torch.arange(37) >= lengths)[:, None, None],
        wide_max=wide_max,
    )
    found = attend_coded(queries, sight, 0, rule, num_kv_heads=KV_HEADS, scale=0.5)
    for row in range(2):
        expected = plainly(pool, queries[row : row + 1], pieces[row], rule)
        torch.testing.assert_close(found[row : row + 1], expected, atol=1e-5, rtol=0)


def test_a_table_in_pieces_changes_no_bit() -> None:
    pool, queries = pool_of(160), torch.randn(1, HEADS, WIDTH)
    for tensor in (pool.cells, pool.scales):
        assert tensor is not None
        tensor[:, :, 96:112] = tensor[:, :, 0:16]
    tables: list[Pieces] = [[(0, 40)], [(96, 112), (16, 40)]]
    one, other = (
        attend_coded(
            queries,
            CodedSight(pool, [pieces], row=0, num_tokens=1, num_heads=HEADS, hidden=None),
            0,
            None,
            num_kv_heads=KV_HEADS,
            scale=0.5,
        )
        for pieces in tables
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gather_decodes", [False, True])
def test_logits_are_near_those_of_the_compute_dtype(kind: str, gather_decodes: bool) -> None:
    """A prompt in two parts, then single rows of it and of a shorter one beside it."""
    model, found = tiny_model(kind), []
    for device in (CPU, INT8):
        runner = make_runner(model, model.spec.whole, device=device, gather_decodes=gather_decodes)
        mine, other = make_sequence(model.spec.whole), make_sequence(model.spec.whole, name="o")
        rows = run_rows(runner, [ids_item(mine, 0, PROMPT[:20])])
        items = [ids_item(mine, 20, PROMPT[20:37]), ids_item(other, 0, PROMPT[:9])]
        rows += run_rows(runner, items)[:1]
        for at in (37, 38, 39):
            both = [ids_item(mine, at, PROMPT[at : at + 1]), ids_item(other, at - 28, [at])]
            rows += run_rows(runner, both)[:1]
        with torch.inference_mode():
            found.append(runner.stage.logits(torch.cat(rows)))
    off = (found[0] - found[1]).abs()
    assert 0 < float(off.mean()) < 0.02 and float(off.max()) < 0.15


def test_activations_that_are_bfloat16_look_into_codes_too() -> None:
    model = tiny_model("llama")
    device = replace(CPU, compute_dtype=DType.BFLOAT16, kv_dtype=KvDtype.INT8)
    runner = make_runner(model, model.spec.whole, device=device)
    (rows,) = run_rows(runner, [ids_item(make_sequence(model.spec.whole), 0, PROMPT)])
    with torch.inference_mode():
        off = (runner.stage.logits(rows) - model.logits(PROMPT)).abs()
    assert rows.dtype is torch.bfloat16 and float(off.mean()) < 0.05


@pytest.mark.parametrize(("dtype", "most"), [(DType.FLOAT32, 0.27), (DType.BFLOAT16, 0.52)])
def test_a_slot_takes_a_quarter_or_half(dtype: DType, most: float) -> None:
    spec = replace(tiny_model("llama").spec, head_dim=64)
    native, int8 = (
        KvPool(
            num_layers=3,
            num_kv_heads=spec.num_kv_heads,
            head_dim=64,
            num_slots=32,
            device=replace(CPU, compute_dtype=dtype, kv_dtype=kv_dtype),
        ).num_bytes
        for kv_dtype in KvDtype
    )
    assert native == 32 * spec.kv_bytes_per_token(3, dtype)
    assert int8 == 32 * spec.kv_bytes_per_token(3, dtype, KvDtype.INT8)
    assert int8 <= most * native
