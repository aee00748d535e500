"""Prompts that begin alike, on a ring over real gRPC; and stages that have forgotten."""

import itertools

import pytest

from plait.prefixes import cache_salt
from tests.unit.node.fake_engine import expected_tokens
from tests.unit.node.ring import Ring, ring, until

SALT = cache_salt("network", "key")
SYSTEM = list(range(1, 201))
_names = (f"r{i}" for i in itertools.count())


async def ask(
    made: Ring, prompt: list[int], *, salt: bytes = SALT, new_tokens: int = 20
) -> list[int]:
    """Rows that each node ran for it."""
    before = [kit.engine.num_rows for kit in made.nodes]
    name = next(_names)
    ticket = made.ticket(name, kv_tokens=400, cache_salt=salt)
    await made.start(name, prompt, max_new_tokens=new_tokens, ticket=ticket)
    await until(lambda: made.gateway.finish(name) is not None, what="the last token")
    assert made.gateway.tokens(name) == expected_tokens(prompt, new_tokens, made.spec)
    await until(made.is_free, limit_s=1.0)
    return [kit.engine.num_rows - b for kit, b in zip(made.nodes, before, strict=True)]


async def test_a_shared_beginning_runs_once_on_every_stage() -> None:
    async with ring(3) as made:
        assert await ask(made, [*SYSTEM, 7, 8]) == [221] * 3
        assert await ask(made, [*SYSTEM, 9]) == [28] * 3  # 192 tokens are twelve blocks


async def test_a_chat_goes_on_where_it_ended() -> None:
    async with ring(2) as made:
        await ask(made, SYSTEM)
        answer = expected_tokens(SYSTEM, 20, made.spec)
        assert await ask(made, [*SYSTEM, *answer, 5, 6]) == [222 - 208 + 19] * 2


async def test_another_key_shares_nothing() -> None:
    async with ring(2) as made:
        await ask(made, SYSTEM)
        assert await ask(made, SYSTEM, salt=cache_salt("network", "other")) == [219] * 2
        assert await ask(made, SYSTEM, salt=b"") == [219] * 2


@pytest.mark.parametrize("forgetful", [(1,), (2,), (1, 2), (0,)])
async def test_what_a_stage_has_lost_runs_again(forgetful: tuple[int, ...]) -> None:
    async with ring(3) as made:
        await ask(made, SYSTEM)
        for index in forgetful:
            made.nodes[index].engine.cache.clear()
        rows = await ask(made, [*SYSTEM, 3])
        assert all(count >= 220 for count in rows), "a stage cannot run what those before did not"
        assert await ask(made, [*SYSTEM, 4]) == [28] * 3


async def test_the_shortest_of_several_prefixes_decides() -> None:
    async with ring(3) as made:
        await ask(made, SYSTEM)
        for index, kept in ((1, 8), (2, 3)):
            cache = made.nodes[index].engine.cache
            for name in list(cache)[kept:]:
                del cache[name]
        rows = await ask(made, [*SYSTEM, 3])
        assert rows[2] == 201 + 19 - 3 * 16
        (told, *_) = list(made.gateway.messages.values())[-1]
        assert told.opened.cached_tokens == 3 * 16
        assert made.nodes[1].engine.num_rewinds <= 1 and 1 <= made.nodes[0].engine.num_rewinds <= 2


async def test_many_requests_over_one_beginning_at_once() -> None:
    async with ring(3) as made:
        await ask(made, SYSTEM)
        made.nodes[1].engine.cache.clear()
        names = [next(_names) for _ in range(8)]
        for number, name in enumerate(names):
            ticket = made.ticket(name, kv_tokens=400, cache_salt=SALT)
            await made.start(name, [*SYSTEM, number], max_new_tokens=12, ticket=ticket)
        for number, name in enumerate(names):
            await until(lambda name=name: made.gateway.finish(name) is not None)  # type: ignore[misc]
            expected = expected_tokens([*SYSTEM, number], 12, made.spec)
            assert made.gateway.tokens(name) == expected
        await until(made.is_free, limit_s=1.0)
