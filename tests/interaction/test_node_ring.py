"""Whole rings of nodes over real gRPC: tokens come back, and everything is given back."""

import pytest

from plait.types import FinishReason
from tests.unit.node.fake_engine import expected_tokens
from tests.unit.node.ring import ring, until


@pytest.mark.parametrize("num_nodes", [1, 2, 3])
async def test_a_request_goes_round_and_its_tokens_come_back(num_nodes: int) -> None:
    async with ring(num_nodes) as made:
        prompt = list(range(1, 301))
        ticket = made.ticket("r1", kv_tokens=400)
        await made.start("r1", prompt, max_new_tokens=20, ticket=ticket)
        await until(lambda: made.gateway.finish("r1") is not None, what="the last token")
        assert made.gateway.tokens("r1") == expected_tokens(prompt, 20, made.spec)
        assert made.gateway.finish("r1") is FinishReason.LENGTH
        assert made.gateway.is_opened("r1")
        await until(made.is_free, limit_s=1.0, what="KV given back")
