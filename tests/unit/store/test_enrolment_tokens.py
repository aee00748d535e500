"""Enrolment tokens and the register of nodes."""

import asyncio

import pytest

from coordinator.shell.store import Store
from plait.clock import ManualClock
from plait.crypto.tokens import JoinToken
from plait.errors import AuthenticationError, InvalidRequestError
from plait.types import NodeId

A, B = NodeId("naaaaaaaaaaaaaaaa"), NodeId("nbbbbbbbbbbbbbbbb")


async def new_token(store: Store, valid_s: int = 60) -> JoinToken:
    word, entry = await store.tokens.create_token(display_name="attic", valid_s=valid_s)
    token = JoinToken.parse(word)
    assert token.token_id == entry.token_id
    return token


async def admit(store: Store, token: JoinToken, node_id: NodeId = A, key: bytes = b"k") -> None:
    await store.tokens.admit(
        token_id=token.token_id,
        secret=token.secret,
        node_id=node_id,
        identity_key=key,
        display_name="attic",
    )


async def refusal(store: Store, token: JoinToken, node_id: NodeId = A, key: bytes = b"k") -> str:
    with pytest.raises(AuthenticationError) as caught:
        await admit(store, token, node_id, key)
    return caught.value.code


async def states(store: Store) -> list[str]:
    return [entry.state for entry in await store.tokens.list_tokens()]


async def test_a_token_lets_one_node_in_once(store: Store, clock: ManualClock) -> None:
    token = await new_token(store)
    assert token.address == "h.example:7420"
    assert await states(store) == ["unused"]
    await admit(store, token)
    assert await states(store) == ["used"]
    assert (await store.tokens.list_tokens())[0].node_id == A
    assert await refusal(store, token, B) == "token_used"
    assert await refusal(store, token, A) == "token_used"
    assert [node.node_id for node in await store.nodes.list_nodes()] == [A]


async def test_a_race_for_one_token_has_one_winner(store: Store) -> None:
    token = await new_token(store)
    nodes = [NodeId(f"n{number:016d}") for number in range(20)]
    outcomes = await asyncio.gather(
        *(admit(store, token, node_id) for node_id in nodes), return_exceptions=True
    )
    refused = [error for error in outcomes if isinstance(error, AuthenticationError)]
    assert len(refused) == 19
    assert {error.code for error in refused} == {"token_used"}
    assert len(await store.nodes.list_nodes()) == 1


async def test_a_token_expires(store: Store, clock: ManualClock) -> None:
    token = await new_token(store, valid_s=60)
    clock.advance(60_000)
    assert await refusal(store, token) == "token_expired"
    assert await states(store) == ["expired"]


async def test_a_token_lasts_a_day_where_nothing_is_said(store: Store, clock: ManualClock) -> None:
    await new_token(store, valid_s=0)
    clock.advance(86_399_999)
    assert await states(store) == ["unused"]
    clock.advance(1)
    assert await states(store) == ["expired"]


@pytest.mark.parametrize("valid_s", [-1, 366 * 86_400 + 1])
async def test_lives_that_no_token_has(store: Store, valid_s: int) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await store.tokens.create_token(display_name="", valid_s=valid_s)
    assert caught.value.param == "valid_s"


async def test_a_revoked_token(store: Store) -> None:
    token = await new_token(store)
    await store.tokens.revoke_token(token.token_id)
    assert await refusal(store, token) == "token_revoked"
    assert await states(store) == ["revoked"]
    with pytest.raises(InvalidRequestError) as caught:
        await store.tokens.revoke_token("0" * 16)
    assert caught.value.code == "not_found"


async def test_a_wrong_secret_tells_nothing_about_the_token(store: Store) -> None:
    token = await new_token(store)
    await store.tokens.revoke_token(token.token_id)
    guess = JoinToken(token_id=token.token_id, secret="00" * 24, ca_der=token.ca_der)
    nowhere = JoinToken(token_id="0" * 16, secret="00" * 24, ca_der=token.ca_der)
    assert await refusal(store, guess) == "token_unknown"
    assert await refusal(store, nowhere) == "token_unknown"


async def test_a_refused_node_does_not_use_up_the_token(store: Store) -> None:
    await admit(store, await new_token(store))
    await store.nodes.ban(A)
    token = await new_token(store)
    assert await refusal(store, token) == "node_banned"
    assert await refusal(store, token, A, b"k") == "node_banned"
    await store.nodes.ban(A, is_banned=False)
    assert await refusal(store, token, A, b"another key") == "identity_conflict"
    await admit(store, token)


async def test_a_node_is_remembered(store: Store, clock: ManualClock) -> None:
    await admit(store, await new_token(store))
    clock.advance(5_000)
    await store.nodes.saw(A)
    node = await store.nodes.require(A)
    assert node.last_seen_unix_ms - node.first_seen_unix_ms == 5_000
    with pytest.raises(AuthenticationError) as caught:
        await store.nodes.require(B)
    assert caught.value.code == "node_unknown"
    with pytest.raises(InvalidRequestError):
        await store.nodes.ban(B)
