"""Whatever comes and goes, what the ledger admits fits the pool and keeps its contents."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.engine.kv_cache import KvLedger, KvPool
from plait.errors import OverloadedError
from tests.unit.engine.kit import CPU

NUM_SLOTS = 24


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 14)), max_size=30))
def test_admitted_sequences_always_find_room(steps: list[tuple[int, int]]) -> None:
    ledger = KvLedger(NUM_SLOTS)
    pool = KvPool(num_layers=1, num_kv_heads=1, head_dim=2, num_slots=NUM_SLOTS, device=CPU)
    sizes: dict[int, int] = {}
    for key, size in steps:
        if key in sizes:
            ledger.release(key)
            pool.free(key)
            del sizes[key]
        elif sum(sizes.values()) + size > NUM_SLOTS:
            with pytest.raises(OverloadedError):
                ledger.reserve(key, size)
        else:
            ledger.reserve(key, size)
            start = pool.place(key, size)
            pool.cells[:, :, start : start + size] = key
            sizes[key] = size
        assert ledger.num_reserved == sum(sizes.values())
        taken: set[int] = set()
        for held, length in sizes.items():
            start_of = pool.start_of(held)
            assert start_of is not None
            assert bool((pool.cells[:, :, start_of : start_of + length] == held).all())
            slots = set(range(start_of, start_of + length))
            assert not slots & taken and max(slots) < NUM_SLOTS
            taken |= slots
