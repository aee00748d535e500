"""The papers a node starts with: its own, or new ones for a token. Needs no engine."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Final

from node.agent.enrol import enrol
from node.agent.identity import NodeCredentials, has_credentials, load_credentials
from node.config import NodeConfig
from plait import log
from plait.crypto.certificates import COORDINATOR_NAME
from plait.crypto.tokens import TOKEN_CHARS_MAX, JoinToken
from plait.errors import ConfigError, DeadlineError, UnavailableError
from plait.wire.listening import check_bindable
from plait.wire.reach import Address, check_reachable

TOKEN_WAIT_S: Final = 60.0
POLL_S: Final = 0.25
_log = log.get("join")


async def join(config: NodeConfig) -> NodeCredentials:
    """The node's papers: those it has, or new ones for a token.

    A token of the network that it belongs to already is not spent. Raises PlaitError, among others
    AuthenticationError(reason="wrong_ca") where another network's coordinator is at the address.
    """
    if has_credentials(config.home):
        credentials = load_credentials(config.home)
        token = JoinToken.parse(config.token) if config.token is not None else None
        if token is None or token.network_id == credentials.network_id:
            return await _moved(credentials, config.coordinator)
    token_word = config.token
    if token_word is None and config.token_file is not None:
        token_word = await token_from_file(config.token_file)
    if token_word is None:
        raise _not_enrolled(config.home)
    return await enrol(config.coordinator, token_word, config.home, config.display_name)


def check_config(config: NodeConfig) -> None:
    """Whether the node has papers or a token, every address reads as one, and this machine can
    listen where it shall: looked at before a folder is made or a token spent.

    Raises ConfigError. May block on DNS.
    """
    if config.token is not None:
        JoinToken.parse(config.token)
    elif config.token_file is None and not has_credentials(config.home):
        raise _not_enrolled(config.home)
    host, _, port = config.listen.rpartition(":")
    check_bindable(host.strip("[]"), int(port), flag="--listen")
    for given in config.advertise:
        try:
            Address.parse(given, default_port=1)
        except ConfigError:
            raise ConfigError(
                f"--advertise {given!r} is not an address: give HOST or HOST:PORT, as neighbours "
                "reach this machine",
                reason="bad_address",
            ) from None
    if config.coordinator:
        Address.parse(config.coordinator)


async def token_from_file(path: Path, *, wait_s: float = TOKEN_WAIT_S) -> str:
    """The token in a file, which may be written a little later than this node starts.

    Raises ConfigError: token_file_missing, token_file_unreadable.
    """
    deadline_s = perf_counter() + wait_s
    is_waiting = False
    while True:
        try:
            with path.open("rb") as file:
                word = file.read(TOKEN_CHARS_MAX + 1).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            if not path.parent.is_dir():
                raise _no_token(path, f"there is no folder {path.parent}") from None
            word = ""
        except OSError as error:
            raise ConfigError(
                f"--token-file {path}: {error.strerror}", reason="token_file_unreadable"
            ) from None
        if word:
            return word
        if perf_counter() >= deadline_s:
            raise _no_token(
                path,
                f"no token came within {wait_s:g} s: look whether the coordinator runs and "
                "writes it",
            )
        if not is_waiting:
            _log.warning("waiting_for_token_file", path=str(path))
            is_waiting = True
        await asyncio.sleep(POLL_S)


def _not_enrolled(home: Path) -> ConfigError:
    return ConfigError(
        f"no node is enrolled in {home}: ask the operator for a token "
        "(`plait token create`), then run `plait node join COORDINATOR --token TOKEN`",
        reason="not_enrolled",
    )


def _no_token(path: Path, why: str) -> ConfigError:
    return ConfigError(f"--token-file {path}: {why}", reason="token_file_missing")


async def _moved(credentials: NodeCredentials, coordinator: str) -> NodeCredentials:
    """The same papers for a coordinator that is dialled at another address now.

    Whether it is the same coordinator is looked at before: at another port of one host the node
    port would stay the old one, and the node would go where nobody sent it."""
    if not coordinator:
        return credentials
    public, port = Address.parse(coordinator), Address.parse(credentials.node_address).port
    if public == Address.parse(credentials.coordinator_address):
        return credentials
    with contextlib.suppress(UnavailableError, DeadlineError):  # away for now: it is tried again
        await check_reachable(public, ca_pem=credentials.ca_pem, target_name=COORDINATOR_NAME)
    moved = Address(public.host, port)
    return replace(credentials, coordinator_address=str(public), node_address=str(moved))
