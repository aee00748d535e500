"""Real engines over three stages, whose nodes have a draft model: answers are those without one,
whatever happens to the chain, and nothing stays behind. The draft model is the model itself."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from plait.types import GuessTotals
from tests.kit.in_process import SmallNetwork, small_network
from tests.kit.proxy_pacing import Conditions
from tests.kit.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
NUM_TOKENS = 60
PROMPT = [*range(60, 90)]
BACK_S = 60.0
GREEDY: dict[str, Any] = {"max_tokens": NUM_TOKENS, "temperature": 0.0, "ignore_eos": True}
DRAWN: dict[str, Any] = {**GREEDY, "temperature": 1.0, "seed": 5, "draft_tokens": 15}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def network(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SmallNetwork]:
    """A node to spare, and links on which guesses are under way for a while."""
    home = tmp_path_factory.mktemp("drafting")
    async with small_network(home, num_nodes=4, num_stages=3, draft_model="tiny") as network:
        for node in network.nodes.values():
            node.proxy.up.conditions = node.proxy.down.conditions = Conditions(delay_ms=15)
        yield network


def guesses(network: SmallNetwork) -> GuessTotals:
    """Of all nodes."""
    totals = [node.node._core.counters.guesses for node in network.nodes.values()]
    return GuessTotals(
        trips=sum(each.trips for each in totals),
        guessed_by_model=sum(each.guessed_by_model for each in totals),
        accepted_by_model=sum(each.accepted_by_model for each in totals),
    )


async def until_free(network: SmallNetwork) -> None:
    """No KV is held, by stages or by draft models."""
    nodes = [node for node in network.nodes.values() if not node.task.done()]
    await until(
        lambda: all(
            node.kv_tokens_reserved == 0
            and node.drafter is not None
            and node.drafter.book.num_sequences == node.drafter.book.blocks_used == 0
            for node in nodes
        ),
        timeout_s=30,
        what="free KV",
    )


@pytest.mark.parametrize("options", [GREEDY, DRAWN])
async def test_new_text_comes_several_tokens_a_trip(
    network: SmallNetwork, options: dict[str, Any]
) -> None:
    async with network.client() as client:
        plain = await client.generate(PROMPT, **{**options, "draft_tokens": 0})
        before = guesses(network)
        drafted = await client.generate(PROMPT, **options)
    after = guesses(network)
    assert drafted.token_ids == plain.token_ids
    assert after.trips - before.trips < NUM_TOKENS
    if options is DRAWN:  # a greedy answer goes round in circles, which is looked up
        assert after.accepted_by_model - before.accepted_by_model > 5
    await until_free(network)


async def draft_states(network: SmallNetwork) -> set[str]:
    """What draft models do, as the operator sees it."""
    text = await network.metrics()
    return set(re.findall(r'plait_node_draft_model{.*state="(\w+)"} 1.0', text))


async def until_state(network: SmallNetwork, expected: str) -> None:
    async with asyncio.timeout(30):  # a heartbeat
        while expected not in await draft_states(network):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_the_operator_sees_what_draft_models_do(network: SmallNetwork) -> None:
    await until_state(network, "guessing")
    await until_state(network, "idle")


async def test_a_client_that_leaves_leaves_nothing_behind(network: SmallNetwork) -> None:
    async with network.client() as client:
        num_tokens = 0
        async with client.stream(PROMPT, **{**DRAWN, "max_tokens": 400}) as stream:
            async for delta in stream:
                num_tokens += len(delta.token_ids)
                if num_tokens > 12:
                    break
        await until_free(network)


async def test_requests_that_press_for_room_with_guesses_draw_the_same_tokens(
    network: SmallNetwork,
) -> None:
    """Each asks for three quarters of a context's KV slots; who finds none waits or starts anew."""
    kv_tokens = min(node.engine.stats().kv_tokens_max or 512 for node in network.nodes.values())
    each, new = 3 * min(kv_tokens, 512) // 4, 16
    prompts = [[(at * 3 + number) % 250 for at in range(each - new)] for number in range(3)]
    options = {**DRAWN, "max_tokens": new}
    async with network.client() as client:
        alone = [await client.generate(p, **{**options, "draft_tokens": 0}) for p in prompts]
        together = await asyncio.gather(*(client.generate(p, **options) for p in prompts))
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]
    await until_free(network)


async def test_a_middle_node_killed_while_guesses_are_under_way_changes_no_token(
    network: SmallNetwork,
) -> None:
    async with network.client() as client:
        plain = await client.generate(PROMPT, **{**DRAWN, "draft_tokens": 0})
        stream = client.stream(PROMPT, **DRAWN, timeout_s=BACK_S)
        token_ids: list[int] = []
        is_killed = False
        async for delta in stream:
            token_ids += delta.token_ids
            if len(token_ids) > 12 and not is_killed:
                is_killed = True
                await network.nodes[stream.route[1].display_name].kill()
    assert is_killed and token_ids == list(plain.token_ids)
    await until_free(network)


async def test_a_draft_model_that_dies_costs_guesses_and_no_token(network: SmallNetwork) -> None:
    options = {**DRAWN, "max_tokens": 16}
    async with network.client() as client:
        plain = await client.generate(PROMPT, **{**options, "draft_tokens": 0})
        for node in network.nodes.values():
            node.drafter_clock.is_broken = True
        drafted = await client.generate(PROMPT, **options)
    assert drafted.token_ids == plain.token_ids
    await until_state(network, "lost")
    await until_free(network)
