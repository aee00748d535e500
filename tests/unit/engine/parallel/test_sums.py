"""All ways to sum give the same on every rank; a group is as slow as its slowest rank."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from node.engine.parallel.host import group_timing
from node.engine.parallel.split import Split
from node.engine.parallel.torch_ranks import TUNED_ROWS, AskedStore, SumTime, TorchCommunicator, Way
from plait.wire.v1.ranks_pb2 import RankLayerReport
from tests.unit.engine.kit import CPU, tiny_model

NUM_RANKS = 3
WAIT_S = 20.0


def connected(store: HashStore, rank: int) -> TorchCommunicator:
    """Ranks find each other as they do over their channels."""
    asked = AskedStore(store.set, store.get)  # type: ignore[arg-type]
    return TorchCommunicator(
        asked, Split(rank, NUM_RANKS), CPU, hostname="127.0.0.1", timeout_s=WAIT_S
    )


@pytest.mark.slow
def test_three_ranks_sum_broadcast_and_gather() -> None:
    store = HashStore()
    parts = [torch.rand(5, 7, generator=torch.Generator().manual_seed(r)) for r in range(3)]
    barrier = threading.Barrier(NUM_RANKS, timeout=WAIT_S)

    def run(rank: int) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor | None, set[Way]]:
        torch.set_num_threads(1)
        ranks = connected(store, rank)
        barrier.wait()
        sums = [ranks._sum(parts[rank].clone(), way) for way in Way]
        rows = parts[rank].clone()
        ranks.broadcast(rows)
        gathered = ranks.gather(parts[rank][:, : 2 + rank], (2, 3, 4))
        tuned = ranks.tune(16)
        assert [time.num_rows for time in tuned] == list(TUNED_ROWS)
        return sums, rows, gathered, {time.way for time in tuned}

    with ThreadPoolExecutor(NUM_RANKS) as pool:
        found = list(pool.map(run, range(NUM_RANKS)))
    expected = (parts[0] + parts[1]) + parts[2]
    for sums, rows, gathered, ways in found:
        ring, star, direct = sums
        torch.testing.assert_close(ring, expected)
        assert torch.equal(star, expected), "in the ranks' order"
        assert torch.equal(direct, expected), "in the ranks' order"
        assert torch.equal(rows, parts[0])
        assert ways == found[0][3], "all take what rank 0 found"
        assert (gathered is None) == (rows is not found[0][1])
    gathered = found[0][2]
    assert gathered is not None
    assert torch.equal(gathered, torch.cat([p[:, : 2 + r] for r, p in enumerate(parts)], dim=1))


def test_a_group_is_as_slow_as_its_slowest_rank_and_two_sums() -> None:
    quick = RankLayerReport(
        decode_layer_ms=1.0,
        decode_layer_ms_per_extra=0.1,
        prefill_layer_ms_per_token=0.2,
        head_ms=3.0,
        step_overhead_ms=0.5,
        embed_ms=0.1,
    )
    slow = RankLayerReport(
        decode_layer_ms=2.0,
        decode_layer_ms_per_extra=0.1,
        prefill_layer_ms_per_token=0.1,
        head_ms=1.0,
        step_overhead_ms=0.25,
        embed_ms=0.05,
    )
    ms = {1: 0.25, 4: 1.0, 16: 2.0, 64: 6.4, 256: 20.0}
    sums = [SumTime(rows, 4 * rows, Way.STAR, {Way.STAR: ms[rows]}) for rows in TUNED_ROWS]
    timing = group_timing(tiny_model("llama").spec, [quick, slow], sums)
    assert timing.decode_layer_ms == pytest.approx(2.0 + 2 * 0.25)
    assert timing.decode_layer_ms_per_extra == pytest.approx(0.1 + 2 * (1.0 - 0.25) / 3)
    assert timing.prefill_layer_ms_per_token == pytest.approx(0.2 + 2 * 6.4 / 64)
    assert timing.head_ms == pytest.approx(3.0 + 2 * 0.25)
    assert timing.step_overhead_ms == pytest.approx(0.5 + 0.25)
