"""Real engines, gRPC, mutual TLS and tickets in one process, whose parts can be asked: what a hop
carries, and how soon a client that was killed is forgotten."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
import pytest_asyncio

from plait.sdk import Hop
from plait.sdk.requests import GenerateOptions
from plait.types import DType
from tests.kit import leaving_client
from tests.kit.in_process import SmallNetwork, small_network
from tests.kit.metrics import figures
from tests.kit.tiny_model import CONFIG
from tests.kit.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
NUM_NODES = 3
CONTEXT = 2_048
ROW_VALUES = int(str(CONFIG["hidden_size"]))
AROUND_BYTES = 128
"""What a decode step may cost on a hop beside its row, whatever the prompt."""
NUM_STEPS = 128
FREE_S = 1.0
CANCELLED = "plait_requests_cancelled_total"


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[DType.FLOAT32, DType.FLOAT16, DType.INT8]
)
async def network(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SmallNetwork]:
    """Three nodes of which two cannot hold the model, for each wire dtype."""
    wire_dtype = DType(request.param)
    home = tmp_path_factory.mktemp(f"small-{wire_dtype}")
    async with small_network(
        home, num_nodes=NUM_NODES, context_tokens=CONTEXT, wire_dtype=wire_dtype
    ) as network:
        yield network


async def test_a_decode_step_costs_a_hop_its_row_and_at_most_128_bytes(
    network: SmallNetwork,
) -> None:
    row_bytes = network.wire_dtype.row_bytes(ROW_VALUES)
    for prompt_tokens in (4, 1_500):
        hops = await _bytes_per_step(network, prompt_tokens)
        assert len(hops) == NUM_NODES - 1
        for num_bytes in hops:
            assert row_bytes < num_bytes <= row_bytes + AROUND_BYTES, (prompt_tokens, hops)


async def _bytes_per_step(network: SmallNetwork, prompt_tokens: int) -> list[float]:
    """What each hop's stream carried forward, from the first token to the last one."""
    prompt = [position % 250 for position in range(prompt_tokens)]
    began: list[dict[int, int]] = []
    num_tokens = 0
    async with network.client() as client:
        options: GenerateOptions = {
            "max_tokens": NUM_STEPS + 1,
            "temperature": 0.0,
            "ignore_eos": True,
            "draft_tokens": 0,
        }
        stream = client.stream(prompt, **options)
        async for delta in stream:
            num_tokens += len(delta.token_ids)
            began = began or _carried_forward(network, stream.route)
        ended = _carried_forward(network, stream.route)
    assert num_tokens == NUM_STEPS + 1
    # Measurements of the way dial connections of their own, and may carry more in that time: the
    # stream is the one that grew least of those that carried all rows.
    rows_bytes = NUM_STEPS * network.wire_dtype.row_bytes(ROW_VALUES)
    grown = [
        min(g for way, num_bytes in first.items() if (g := last[way] - num_bytes) >= rows_bytes)
        for first, last in zip(began, ended, strict=True)
    ]
    return [num_bytes / NUM_STEPS for num_bytes in grown]


def _carried_forward(network: SmallNetwork, route: Sequence[Hop]) -> list[dict[int, int]]:
    """Bytes so far of each hop's connections, whichever of two neighbours dialled the other."""
    chain = [network.nodes[hop.display_name].proxy.connections for hop in route]
    assert len(chain) == NUM_NODES
    ways = [
        [*(dialled.up for dialled in there), *(dialled.down for dialled in here)]
        for here, there in pairwise(chain)
    ]
    return [{id(way): way.num_bytes for way in hop} for hop in ways]


async def test_a_killed_clients_kv_is_free_on_all_nodes_within_a_second(
    network: SmallNetwork,
) -> None:
    """Asked of each engine itself every few milliseconds; at this length the answer would have
    gone on for many seconds."""
    arguments = [network.news.public_address, network.api_key, str(network.ca_path)]
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", leaving_client.__name__, *arguments, str(CONTEXT - 64)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert client.stdout is not None
        async with asyncio.timeout(30):
            assert await client.stdout.readline() == b"streaming\n"
        assert min(node.kv_tokens_reserved for node in network.nodes.values()) > 0
    finally:
        client.kill()
    killed_s = time.perf_counter()
    nodes = network.nodes.values()
    await until(
        lambda: all(node.kv_tokens_reserved == 0 for node in nodes), timeout_s=10, what="free KV"
    )
    took_s = time.perf_counter() - killed_s
    assert took_s < FREE_S
    await client.wait()
    async with asyncio.timeout(5):  # and it was the client's end, not the answer's
        while figures(await network.metrics(), CANCELLED) != [1]:  # noqa: ASYNC110 - another's
            await asyncio.sleep(0.02)


async def test_a_prompt_that_was_run_is_not_run_again(network: SmallNetwork) -> None:
    """Every stage keeps it, by the API key; the answer is the same."""
    prompt = [(position * 7) % 250 for position in range(1_000)]
    answers, rows = [], []
    async with network.client() as client:
        for _ in range(2):
            before = [node.engine.stats().tokens_total for node in network.nodes.values()]
            answer = await client.generate(prompt, max_tokens=8, temperature=0.0, ignore_eos=True)
            answers.append(answer.token_ids)
            after = [node.engine.stats().tokens_total for node in network.nodes.values()]
            rows.append([b - a for a, b in zip(before, after, strict=True)])
    assert answers[0] == answers[1]
    assert min(rows[0]) >= 1_007 and max(rows[1]) <= 16 + 7, rows


async def test_a_demand_of_twice_the_kv_is_met(network: SmallNetwork) -> None:
    """Nobody is refused or aborted, and nothing stays behind."""
    if network.wire_dtype is not DType.FLOAT32:
        pytest.skip("the dtype of a hop changes nothing here")
    nodes = network.nodes.values()
    kv_tokens = min(node.engine.stats().kv_tokens_max for node in nodes)
    each, new = 700, 48
    count = 2 * kv_tokens // each + 1
    async with network.client() as client:
        answers = await asyncio.gather(
            *(
                client.generate(
                    [(position * 3 + number) % 250 for position in range(each - new)],
                    max_tokens=new,
                    temperature=0.0,
                    ignore_eos=True,
                )
                for number in range(count)
            )
        )
    assert [len(answer.token_ids) for answer in answers] == [new] * count
    await until(
        lambda: all(node.kv_tokens_reserved == 0 for node in nodes), timeout_s=10, what="free KV"
    )
