"""What a network needs once: keys for its operator and a first client, a profile for this user."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.ports import KeyStore, TokenStore
from plait.config import ClientProfile, write_private
from plait.crypto.files import read_private
from plait.crypto.tokens import TOKEN_CHARS_MAX, JoinToken
from plait.errors import AuthenticationError, ConfigError
from plait.log import get

ADMIN_NAME: Final = "operator (this machine)"
CLIENT_NAME: Final = "first client"
ADMIN_KEY: Final = "admin.key"
TOKEN_FILE_VALID_S: Final = 30 * 24 * 3600
_KEPT_STATES: Final = frozenset({"unused", "used"})
log = get("first_start")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstKeys:
    """`admin` is kept in a file of mode 0600; `client` is None where it was shown before."""

    admin: str
    client: str | None


async def ensure_keys(keys: KeyStore, folder: Path) -> FirstKeys:
    """The operator's key of this machine, made where there is none or it was revoked, and on a
    network without any key also one for a first client.

    Raises ConfigError where others can read the operator's key.
    """
    path = folder / ADMIN_KEY
    is_new = not await keys.list_keys()
    if path.exists():
        admin = read_private(path).decode("utf-8", "replace").strip()
        try:
            if (await keys.verify_key(admin)).is_admin:
                return FirstKeys(admin=admin, client=None)
        except AuthenticationError as error:
            log.warning("admin_key_replaced", because=error.code)
    admin, _ = await keys.create_key(display_name=ADMIN_NAME, is_admin=True)
    write_private(path, admin.encode())
    client = None
    if is_new:
        client, _ = await keys.create_key(display_name=CLIENT_NAME, is_admin=False)
    return FirstKeys(admin=admin, client=client)


def save_profile(*, address: str, ca_pem: bytes, admin_key: str, http_url: str) -> Path:
    """Write client.json for this user's command line, as the operator; 0600."""
    profile = ClientProfile(
        address=address, ca_pem=ca_pem.decode("ascii"), api_key=admin_key, http_url=http_url
    )
    return profile.save()


async def write_token_files(tokens: TokenStore, paths: tuple[Path, ...]) -> None:
    """An enrolment token of 30 days into each file (0600), for a node that will read it.

    A token that is there stays while it is still good, or let a node in. Raises ConfigError where
    a file cannot be read or written.
    """
    states = {token.token_id: token.state for token in await tokens.list_tokens()}
    for path in paths:
        try:
            if states.get(_token_id_in(path)) in _KEPT_STATES:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            token, _ = await tokens.create_token(display_name=path.stem, valid_s=TOKEN_FILE_VALID_S)
            write_private(path, token.encode())
        except OSError as error:
            raise ConfigError(f"--token-file {path}: {error.strerror}") from error
        log.info("token_written", path=str(path))


def _token_id_in(path: Path) -> str:
    """Id of the token in a file; empty where there is none."""
    try:
        with path.open("rb") as file:
            word = file.read(TOKEN_CHARS_MAX + 1).decode("utf-8", "replace")
        return JoinToken.parse(word).token_id
    except (FileNotFoundError, ConfigError):
        return ""
