"""Private keys on disk: readable by their owner alone, or not read at all."""

import os
import stat
from pathlib import Path

from plait.errors import ConfigError, plain_cause


def read_private(path: Path) -> bytes:
    """Content of a secret file.

    Raises ConfigError where it is missing, unreadable, or open to group or others.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"{path} can be read by others (mode {mode:04o}): run `chmod 600 {path}`; "
                    "if others use this machine, replace the key too",
                    reason="key_file_open",
                )
            return file.read()
    except FileNotFoundError:
        raise ConfigError(f"there is no key file {path}", reason="key_file_missing") from None
    except OSError as error:
        raise ConfigError(
            f"the key file {path} cannot be read: {error.strerror}", reason="key_file_unreadable"
        ) from None


def private_dir(path: Path) -> Path:
    """Create a folder, mode 0700, or close an existing one to group and others.

    Raises ConfigError where that cannot be.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o700)
    except FileExistsError:
        raise ConfigError(f"{path} is a file, not a folder: name another") from None
    except OSError as error:
        raise ConfigError(f"the folder {path} cannot be used: {plain_cause(error)}") from error
    return path
