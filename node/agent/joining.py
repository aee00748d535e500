"""The papers a node starts with: its own, or new ones for a token. Needs no engine."""

from dataclasses import replace

from node.agent.enrol import enrol
from node.agent.identity import NodeCredentials, has_credentials, load_credentials
from node.config import NodeConfig
from plait.crypto.tokens import JoinToken
from plait.errors import ConfigError
from plait.wire.reach import Address


async def join(config: NodeConfig) -> NodeCredentials:
    """The node's papers: those it has, or new ones for a token.

    A token of the network that it belongs to already is not spent. Raises PlaitError.
    """
    if has_credentials(config.home):
        credentials = load_credentials(config.home)
        token = JoinToken.parse(config.token) if config.token is not None else None
        if token is None or token.network_id == credentials.network_id:
            return _moved(credentials, config.coordinator)
    if config.token is None:
        raise ConfigError(
            f"no node is enrolled in {config.home}: ask the operator for a token "
            "(`plait token create`), then run `plait node join COORDINATOR --token TOKEN`",
            reason="not_enrolled",
        )
    return await enrol(config.coordinator, config.token, config.home, config.display_name)


def _moved(credentials: NodeCredentials, coordinator: str) -> NodeCredentials:
    """The same papers for a coordinator that is dialled at another host now."""
    if not coordinator:
        return credentials
    public, port = Address.parse(coordinator), Address.parse(credentials.node_address).port
    if public == Address.parse(credentials.coordinator_address):
        return credentials
    moved = Address(public.host, port)
    return replace(credentials, coordinator_address=str(public), node_address=str(moved))
