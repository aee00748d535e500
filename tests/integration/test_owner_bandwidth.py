"""An owner's up_mbit, on real links: what leaves a node that does nothing but prompts."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from coordinator.core.view import NetworkView
from coordinator.view_json import network_from_json
from plait.crypto.certificates import COORDINATOR_NAME
from plait.sdk import AsyncClient
from plait.wire.channel import secure_channel
from plait.wire.v1 import admin_pb2, admin_pb2_grpc
from tests.kit.in_process import SmallNetwork, small_network
from tests.kit.wait import until

pytestmark = pytest.mark.slow
UP_MBIT = 8.0
MOST_MBIT = 8.4
WATCH_S = float(os.environ.get("PLAIT_PACE_S", "5"))
"""How long bytes are counted; `PLAIT_PACE_S=20` for a longer look."""
CONTEXT_TOKENS = 512
TIMES_WIDE = 8
NUM_CLIENTS = 4


async def test_prompts_leave_a_node_no_faster_than_its_owner_allows_and_the_router_knows(
    tmp_path: Path,
) -> None:
    async with (
        small_network(
            tmp_path,
            num_nodes=2,
            context_tokens=CONTEXT_TOKENS,
            times_wide=TIMES_WIDE,
            sets=(f"up_mbit={UP_MBIT:g}",),
        ) as network,
        network.client() as client,
    ):
        for node in (await view(network)).nodes:
            assert 0 < node.up_bytes_per_s <= UP_MBIT * 125_000
            assert all(hop.bytes_per_s <= UP_MBIT * 125_000 for hop in node.hops)
        asking = [asyncio.create_task(ask_on(client, who)) for who in range(NUM_CLIENTS)]
        before = sent_bytes(network)
        await until(lambda: max(sent_bytes(network)) - max(before) > 1e6, what="prompts under way")
        start_s, before = asyncio.get_running_loop().time(), sent_bytes(network)
        await asyncio.sleep(WATCH_S)
        after, length_s = sent_bytes(network), asyncio.get_running_loop().time() - start_s
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    mbit = [(b - a) * 8 / length_s / 1e6 for a, b in zip(before, after, strict=True)]
    assert 0.5 < max(mbit) <= MOST_MBIT, mbit
    if "PLAIT_PACE_S" in os.environ:
        print(f"{max(mbit):.2f} Mbit/s over {length_s:.1f} s")  # noqa: T201 - the figure asked for


async def ask_on(client: AsyncClient, who: int) -> None:
    """Prompts that nothing is known of, one after another."""
    rng = random.Random(who)
    while True:
        prompt = [rng.randrange(256) for _ in range(CONTEXT_TOKENS - 8)]
        await client.generate(prompt, max_tokens=1, ignore_eos=True)


def sent_bytes(network: SmallNetwork) -> list[int]:
    """Of each of the two nodes, as TLS carried them, whichever end dialled."""
    first, second = network.nodes.values()
    return [
        second.proxy.up_bytes + first.proxy.down_bytes,
        first.proxy.up_bytes + second.proxy.down_bytes,
    ]


async def view(network: SmallNetwork) -> NetworkView:
    channel = secure_channel(
        network.news.public_address,
        ca_pem=network.ca_path.read_bytes(),
        target_name=COORDINATOR_NAME,
    )
    try:
        answer = await admin_pb2_grpc.AdminServiceStub(channel).GetNetwork(
            admin_pb2.GetNetworkRequest(),
            metadata=(
                ("authorization", f"Bearer {network.news.admin_key_path.read_text().strip()}"),
            ),
        )
    finally:
        await channel.close()
    return network_from_json(answer.view_json)
