"""What a network needs once: keys for its operator and a first client, a profile for this user."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.ports import KeyStore, TokenStore
from plait.config import ClientProfile, write_private
from plait.errors import AuthenticationError, ConfigError
from plait.log import get

ADMIN_NAME: Final = "operator (this machine)"
CLIENT_NAME: Final = "first client"
ADMIN_KEY: Final = "admin.key"
log = get("first_start")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstKeys:
    """`admin` is kept in a file of mode 0600; `client` is None where it was shown before."""

    admin: str
    client: str | None


async def ensure_keys(keys: KeyStore, folder: Path) -> FirstKeys:
    """The operator's key of this machine, made where there is none or it was revoked, and on a
    network without any key also one for a first client."""
    path = folder / ADMIN_KEY
    is_new = not await keys.list_keys()
    if path.exists():
        admin = path.read_text("utf-8").strip()
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
    """An enrolment token into each file (0600) that does not exist yet.

    Raises ConfigError where one cannot be written.
    """
    for path in paths:
        if path.exists():
            continue
        token, _ = await tokens.create_token(display_name=path.stem, valid_s=0)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_private(path, token.encode())
        except OSError as error:
            raise ConfigError(f"--token-file {path}: {error.strerror}") from error
        log.info("token_written", path=str(path))
