"""Where plait keeps its files on this machine."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs

from plait.errors import ConfigError, plain_cause


def home_dir() -> Path:
    """State of this user's nodes and coordinators: identities, stores, journals.

    `PLAIT_HOME` overrides the platform's data folder.
    """
    override = os.environ.get("PLAIT_HOME")
    return Path(override) if override else Path(platformdirs.user_data_dir("plait"))


def models_dir() -> Path:
    """Pulled weights. `PLAIT_MODELS` overrides the platform's cache folder."""
    override = os.environ.get("PLAIT_MODELS")
    return Path(override) if override else Path(platformdirs.user_cache_dir("plait")) / "models"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProfile:
    """How this user's clients reach a network. `address` is the public gRPC port, host:port."""

    address: str
    ca_pem: str
    api_key: str
    http_url: str = ""

    @staticmethod
    def path() -> Path:
        """Written by `plait coordinator` on its own machine, 0600; copied by operators."""
        return home_dir() / "client.json"

    @classmethod
    def load(cls, path: Path | None = None) -> "ClientProfile":
        """Read a profile. Raises ConfigError with what to do when there is none."""
        source = path if path is not None else cls.path()
        try:
            return cls(**json.loads(source.read_text("utf-8")))
        except FileNotFoundError:
            raise ConfigError(
                f"no client profile at {source}: start `plait coordinator` on this machine, or "
                "give address, API key and CA (PLAIT_ADDRESS, PLAIT_API_KEY, PLAIT_CA)"
            ) from None
        except (OSError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the client profile at {source} cannot be read: {plain_cause(error)}; "
                "`plait coordinator` on this machine writes it anew"
            ) from error

    def save(self, path: Path | None = None) -> Path:
        """Write the profile, readable by its owner only."""
        target = path if path is not None else self.path()
        target.parent.mkdir(parents=True, exist_ok=True)
        write_private(target, json.dumps(asdict(self), indent=1).encode())
        return target


def write_private(path: Path, content: bytes) -> None:
    """Replace a file at once, with mode 0600 from its first moment. It is on the disk, by its name,
    when this returns."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    if os.name == "posix":  # elsewhere folders cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
