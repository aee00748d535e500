"""Weights leave behind tokens and prompts, at the owner's rate, and are counted."""

import asyncio

from node.agent.weight_counts import WeightCounts
from node.transport.pace import Pace
from node.transport.weights_service import BLOCK_BYTES, YIELDS_MAX, WeightsGiver
from plait.types import NodeId
from plait.types.weights import CHUNK_BYTES, FileRange
from plait.wire.v1 import weights_pb2

REQUEST = weights_pb2.FetchRequest(
    content_id="f", range=weights_pb2.FileRange(start=0, size=CHUNK_BYTES)
).SerializeToString()


class Time:
    """Seconds that pass when somebody looks."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.05
        return self.now_s


class Zeros:
    def read(self, content_id: str, wanted: FileRange, chunk: int) -> bytes:
        return bytes(CHUNK_BYTES)


async def given(giver: WeightsGiver) -> int:
    return sum([len(block.content) async for block in giver.give(NodeId("n"), REQUEST)])


async def test_what_leaves_is_counted_as_traffic_and_as_weights() -> None:
    counts, pace = WeightCounts(), Pace(now_s=Time())
    assert await given(WeightsGiver(Zeros(), counts, pace, serves=True)) == CHUNK_BYTES
    assert counts.served_bytes == pace.totals.sent_bytes == CHUNK_BYTES


async def test_a_block_lets_waiting_frames_go_first_but_goes_in_the_end() -> None:
    looks = 0

    def is_busy() -> bool:
        nonlocal looks
        looks += 1
        return looks <= 3 or 10 < looks <= 15 + YIELDS_MAX

    giver = WeightsGiver(Zeros(), WeightCounts(), Pace(now_s=Time()), serves=True, is_busy=is_busy)
    blocks = giver.give(NodeId("n"), REQUEST)
    await anext(blocks)
    assert looks == 4, "it waited for three looks"
    async with asyncio.timeout(30):
        rest = [block async for block in blocks]
    assert len(rest) == CHUNK_BYTES // BLOCK_BYTES - 1
    assert looks > YIELDS_MAX, "always busy, and yet"


def test_weights_wait_for_the_rate_and_behind_prompts() -> None:
    now_s = 0.0
    pace = Pace(now_s=lambda: now_s, up_bytes_per_s=1e6)
    assert pace.spare_wait_s() == 0.0
    assert pace.bulk_wait_s("a stream with a prompt") == 0.0
    assert pace.spare_wait_s() > 0.0, "a prompt has its turn"
    pace.leave("a stream with a prompt")
    pace.sent(1_000_000, is_bulk=True)
    assert pace.spare_wait_s() > 0.5
    assert pace.quick_wait_s() == 0.0, "tokens do not wait for weights"


def test_counts_are_a_line_for_people() -> None:
    counts = WeightCounts()
    assert counts.line() == ""
    counts.came("nattic", 2_000_000)
    counts.hub_bytes = 1_000_000
    counts.reject("ncellar")
    counts.refuse("busy")
    assert counts.line() == (
        "2.0 MB from neighbours (nattic 2.0 MB); 1.0 MB from the hub; "
        "wrong bytes from ncellar (1); 1 requests of others refused"
    )
