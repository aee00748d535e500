"""Hashes of a prompt's blocks: equal as long as prompts are, and no further."""

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.gateway.prefixes import BLOCKS_MAX, block_hashes
from plait.prefixes import BLOCK_TOKENS

TOKENS = st.lists(st.integers(0, 200_000), max_size=80)


@settings(max_examples=100, deadline=None)
@given(TOKENS, TOKENS, TOKENS)
def test_hashes_agree_exactly_as_far_as_prompts_do(
    common: list[int], one: list[int], two: list[int]
) -> None:
    first, second = common + one, common + two
    alike = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        alike += 1
    hashes = list(zip(block_hashes(first, b"s"), block_hashes(second, b"s"), strict=False))
    assert [a == b for a, b in hashes] == [
        (at + 1) * BLOCK_TOKENS <= alike for at in range(len(hashes))
    ]


def test_the_last_token_is_always_run_and_long_prompts_are_not_hashed_whole() -> None:
    assert block_hashes(range(BLOCK_TOKENS), b"s") == ()
    assert len(block_hashes(range(BLOCK_TOKENS + 1), b"s")) == 1
    assert len(block_hashes(range(100_000), b"s")) == BLOCKS_MAX


def test_another_networks_hashes_are_others() -> None:
    assert block_hashes(range(40), b"s") != block_hashes(range(40), b"t")
