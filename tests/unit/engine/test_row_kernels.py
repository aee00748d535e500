"""Kernels of rows: the numbers that torch gives, and a row's alone whatever stands beside it."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.kernels.processor import has_kernels
from node.engine.kernels.rows import (
    HeadKernels,
    RowKernels,
    RowPlaces,
    RowTable,
    head_kernels,
    row_kernels,
)

if not has_kernels():
    pytest.skip("this processor has no kernels", allow_module_level=True)

QUERIES, KV_HEADS, SLOTS, POSITIONS = 6, 2, 160, 50
Pieces = list[tuple[int, int]]
SEEN: list[Pieces] = [[(0, 1)], [(4, 12)], [(20, 97)], [(100, 150), (3, 40), (60, 61)]]


@pytest.fixture(params=[8, 64, 80, 256])
def head_dim(request: pytest.FixtureRequest) -> int:
    width: int = request.param
    return width


@pytest.fixture
def kernels(head_dim: int) -> HeadKernels:
    found = head_kernels(head_dim, torch.float32, torch.device("cpu"))
    assert found is not None
    return found


@pytest.fixture
def heads(head_dim: int) -> Tensor:
    return torch.randn(len(SEEN), QUERIES + 2 * KV_HEADS, head_dim, generator=seeded(1))


@pytest.fixture
def cells(head_dim: int) -> Tensor:
    return torch.randn(2 * KV_HEADS, SLOTS, head_dim, generator=seeded(2))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def attended(kernels: HeadKernels, heads: Tensor, cells: Tensor, seen: list[Pieces]) -> Tensor:
    """Each row over its pieces, (rows, queries, head_dim)."""
    out = torch.full((len(heads), QUERIES, heads.shape[2]), torch.nan)
    table = RowTable(list(enumerate(seen)))
    kernels.attend(heads, cells, out, table, scale=heads.shape[2] ** -0.5)
    return out


def by_torch(queries: Tensor, cells: Tensor, seen: Pieces) -> Tensor:
    """One row, in float64."""
    slots = torch.cat([torch.arange(first, end) for first, end in seen])
    keys, values = cells[:KV_HEADS, slots].double(), cells[KV_HEADS:, slots].double()
    asked = queries.double().view(KV_HEADS, -1, queries.shape[1])
    weights = torch.softmax(asked @ keys.transpose(1, 2) * queries.shape[1] ** -0.5, dim=-1)
    return (weights @ values).view(queries.shape)


def test_a_row_sees_its_own_pieces(kernels: HeadKernels, heads: Tensor, cells: Tensor) -> None:
    out = attended(kernels, heads, cells, SEEN)
    for row, seen in enumerate(SEEN):
        expected = by_torch(heads[row, :QUERIES], cells, seen)
        torch.testing.assert_close(out[row].double(), expected, atol=2e-6, rtol=1e-5)


def test_no_bit_of_a_row_depends_on_others_nor_on_where_its_tokens_lie(
    kernels: HeadKernels, heads: Tensor, cells: Tensor
) -> None:
    together = attended(kernels, heads, cells, SEEN)
    for row, seen in enumerate(SEEN):
        alone = attended(kernels, heads[row : row + 1].clone(), cells, [seen])
        assert torch.equal(alone[0], together[row])
    cuts = [20, 21, 50, 83, 97]
    assert torch.equal(
        attended(kernels, heads[2:3].clone(), cells, [list(pairwise(cuts))])[0], together[2]
    )
    moved = cells.clone()
    moved[:, 60:137] = cells[:, 20:97]
    assert torch.equal(attended(kernels, heads[2:3].clone(), moved, [[(60, 137)]])[0], together[2])


def test_threads_change_no_bit(kernels: HeadKernels, cells: Tensor, head_dim: int) -> None:
    many = torch.randn(90, QUERIES + 2 * KV_HEADS, head_dim, generator=seeded(3))
    seen: list[Pieces] = [[(0, 1 + row)] for row in range(90)]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = attended(kernels, many, cells, seen)
        torch.set_num_threads(3)
        assert torch.equal(attended(kernels, many, cells, seen), one)
    finally:
        torch.set_num_threads(threads)


def test_scores_of_any_size_have_a_softmax(kernels: HeadKernels, cells: Tensor) -> None:
    heads = 300 * torch.randn(1, QUERIES + 2 * KV_HEADS, cells.shape[2], generator=seeded(4))
    out = attended(kernels, heads, cells, [[(0, 100)]])
    expected = by_torch(heads[0, :QUERIES], cells, [(0, 100)])
    torch.testing.assert_close(out[0].double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_seen(
    kernels: HeadKernels, heads: Tensor, cells: Tensor, bad: float
) -> None:
    broken = cells.clone()
    broken[0, 5] = bad
    out = attended(kernels, heads, broken, SEEN)
    assert not torch.isfinite(out[1]).all()
    assert torch.isfinite(out[2]).all()


def test_rows_are_turned_and_written(
    kernels: HeadKernels, heads: Tensor, cells: Tensor, head_dim: int
) -> None:
    angles = torch.randn(POSITIONS, head_dim // 2, generator=seeded(5))
    turns = torch.polar(torch.ones_like(angles), angles)
    positions, slots = [3, 0, 49], [159, 0, 7]  # the last row is padding
    num_turned = QUERIES + KV_HEADS
    expected = heads.clone()
    pairs = torch.view_as_complex(expected[:3, :num_turned].reshape(3, num_turned, -1, 2))
    turned = torch.view_as_real(pairs * turns[positions].unsqueeze(1)).flatten(-2)
    expected[:3, :num_turned] = turned
    expected_cells = cells.clone()
    expected_cells[:, slots] = expected[:3, QUERIES:].transpose(0, 1)
    places = RowPlaces(zip(positions, slots, strict=True))
    plain, plain_cells = heads.clone(), cells.clone()
    kernels.place(heads, turns, cells, places)
    torch.testing.assert_close(heads, expected)
    torch.testing.assert_close(cells, expected_cells)
    assert torch.equal(heads[3], plain[3])
    before = plain.clone()
    kernels.place(plain, None, plain_cells, places)
    assert torch.equal(plain, before)
    assert torch.equal(plain_cells[:, slots], before[:3, QUERIES:].transpose(0, 1))


def test_norms_and_gates_are_torchs() -> None:
    kernels = row_kernels(48, torch.float32, torch.device("cpu"))
    assert isinstance(kernels, RowKernels)
    rows = 10 * torch.randn(5, 96, generator=seeded(6))
    rows[0, :4] = torch.tensor([-200.0, 200.0, 0.0, -0.0])
    weight = torch.randn(96, generator=seeded(7))
    expected = F.rms_norm(rows.double(), (96,), weight.double(), 1e-5)
    torch.testing.assert_close(
        kernels.norm(rows, weight, 1e-5).double(), expected, atol=1e-6, rtol=1e-5
    )
    gate, up = rows.double().chunk(2, dim=1)
    torch.testing.assert_close(kernels.gate(rows).double(), F.silu(gate) * up, atol=1e-5, rtol=1e-5)
    for row in range(5):
        alone = rows[row : row + 1].clone()
        assert torch.equal(kernels.gate(alone)[0], kernels.gate(rows)[row])
        assert torch.equal(
            kernels.norm(alone, weight, 1e-5)[0], kernels.norm(rows, weight, 1e-5)[row]
        )
    rows[2, 3] = torch.nan
    assert not torch.isfinite(kernels.gate(rows)[2]).all()
    assert not torch.isfinite(kernels.norm(rows, weight, 1e-5)[2]).any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("at", [(0, 0), (1, 17), (2, 39)])
def test_one_number_that_is_none_is_found(bad: float, at: tuple[int, int]) -> None:
    rows = torch.randn(3, 40, generator=seeded(8))
    rows[0, 1], rows[2, 2] = 3.4e38, 3.4e38  # whose sum is too large, and which are fine
    kernels = row_kernels(40, torch.float32, torch.device("cpu"))
    assert kernels is not None
    assert kernels.is_finite(rows)
    rows[at] = bad
    assert not kernels.is_finite(rows)
    rows[1, 3] = -bad
    assert not kernels.is_finite(rows)


def test_what_kernels_are_not_made_for_has_none() -> None:
    cpu = torch.device("cpu")
    assert head_kernels(12, torch.float32, cpu) is None
    assert head_kernels(64, torch.float16, cpu) is None
    assert row_kernels(64, torch.float32, torch.device("meta")) is None
