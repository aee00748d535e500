"""Joining once more: an answer that was lost, a token that comes in a file."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.agent.enrol import enrol
from node.agent.identity import load_credentials
from node.agent.joining import join, token_from_file
from node.config import NodeConfig
from plait.errors import AuthenticationError, ConfigError
from tests.integration.enrolment_support import Network, running_network


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    async with running_network(tmp_path / "network") as started:
        yield started


def lose_answer(home: Path) -> None:
    """What is on the disk when the coordinator let the node in and the answer did not arrive."""
    for path in home.iterdir():
        if path.name != "identity.pem":
            path.unlink()


async def test_a_lost_answer_does_not_cost_the_token(network: Network, tmp_path: Path) -> None:
    token = await network.token()
    first = await enrol(network.public_address, token, tmp_path / "n", "attic")
    lose_answer(tmp_path / "n")
    again = await enrol(network.public_address, token, tmp_path / "n", "attic")
    assert again.node_id == first.node_id
    assert load_credentials(tmp_path / "n") == again
    assert [n.node_id for n in await network.store.nodes.list_nodes()] == [first.node_id]


async def test_a_lost_answer_does_not_let_a_banned_node_in(
    network: Network, tmp_path: Path
) -> None:
    token = await network.token()
    first = await enrol(network.public_address, token, tmp_path / "n", "attic")
    await network.store.nodes.ban(first.node_id)
    lose_answer(tmp_path / "n")
    with pytest.raises(AuthenticationError) as caught:
        await enrol(network.public_address, token, tmp_path / "n", "attic")
    assert caught.value.code == "node_banned"


async def test_a_token_file_may_come_later_and_is_left_alone_once_enrolled(
    network: Network, tmp_path: Path
) -> None:
    path = tmp_path / "node.token"
    path.touch()
    config = NodeConfig(home=tmp_path / "n", coordinator=network.public_address, token_file=path)
    joining = asyncio.create_task(join(config))
    await asyncio.sleep(0)
    assert not joining.done()
    path.write_text(await network.token() + "\n")
    async with asyncio.timeout(20):
        credentials = await joining
    path.write_text("not a token")
    assert (await join(config)).node_id == credentials.node_id
    path.unlink()
    assert (await join(config)).node_id == credentials.node_id


async def test_a_token_file_that_does_not_come_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, wait_s, code in (
        (tmp_path / "x", 0.0, "token_file_missing"),
        (tmp_path / "x" / "y", 60.0, "token_file_missing"),
        (tmp_path, 60.0, "token_file_unreadable"),
    ):
        with pytest.raises(ConfigError, match="--token-file") as caught:
            await token_from_file(path, wait_s=wait_s)
        assert caught.value.code == code


async def test_papers_of_one_network_do_not_lead_to_another(
    network: Network, tmp_path: Path
) -> None:
    """On one host networks differ by their ports: the node port of the papers would be wrong."""
    home = tmp_path / "n"
    enrolled = await enrol(network.public_address, await network.token(), home, "attic")
    async with running_network(tmp_path / "other") as other:
        with pytest.raises(AuthenticationError) as caught:
            await join(NodeConfig(home=home, coordinator=other.public_address))
        assert caught.value.code == "wrong_ca"
    assert (await join(NodeConfig(home=home, coordinator=other.public_address))).node_id == (
        enrolled.node_id
    ), "nobody is there now: it may be the coordinator's new address, so the node keeps trying"
