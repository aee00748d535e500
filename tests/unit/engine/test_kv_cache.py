"""Slots are promised once, placed side by side, and survive moving."""

import pytest
import torch

from node.engine.kv_cache import KvLedger, KvPool
from plait.errors import OverloadedError
from tests.unit.engine.kit import CPU

CPU_RAMP = torch.arange(64.0)


def make_pool(num_slots: int) -> KvPool:
    return KvPool(num_layers=2, num_kv_heads=2, head_dim=4, num_slots=num_slots, device=CPU)


def test_a_full_ledger_refuses_and_keeps_its_promises() -> None:
    ledger = KvLedger(100)
    ledger.reserve("a", 60)
    with pytest.raises(OverloadedError) as refused:
        ledger.reserve("b", 41)
    assert refused.value.code == "kv_full" and refused.value.is_retryable
    assert ledger.num_reserved == 60
    ledger.reserve("b", 40)
    ledger.release("a")
    ledger.release("a")
    assert ledger.num_reserved == 40


def test_places_do_not_overlap() -> None:
    pool = make_pool(30)
    starts = [pool.place(key, 10) for key in "abc"]
    assert sorted(starts) == [0, 10, 20]
    pool.free("b")
    assert pool.place("d", 7) == 10
    assert pool.start_of("b") is None


def test_scattered_gaps_are_closed_and_contents_move_along() -> None:
    pool = make_pool(40)
    for value, key in enumerate("abcd", start=1):
        start = pool.place(key, 10)
        pool.cells[:, :, start : start + 10] = value
    pool.free("a")
    pool.free("c")
    pool.place("e", 20)
    for value, key in ((2, "b"), (4, "d")):
        moved = pool.start_of(key)
        assert moved is not None
        assert bool((pool.cells[:, :, moved : moved + 10] == value).all())


def test_a_move_onto_itself_keeps_contents() -> None:
    pool = make_pool(30)
    pool.place("a", 3)
    start = pool.place("b", 20)
    pool.cells[:, :, start : start + 20] = CPU_RAMP[:20].view(1, 1, 20, 1)
    pool.free("a")
    pool.place("c", 10)
    assert pool.start_of("b") == 0
    assert bool((pool.cells[0, 0, :20, 0] == CPU_RAMP[:20]).all())
