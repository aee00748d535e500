"""One process per folder of keys and state: two coordinators would hand out the same keys twice,
two nodes of one identity would push each other off the network."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from plait.crypto.files import private_dir
from plait.errors import ConfigError


@contextlib.contextmanager
def sole_owner(folder: Path, *, role: str, flag: str) -> Iterator[None]:
    """Hold the folder's lock; the system lets go of it when the process ends, however it ends.

    Raises ConfigError: another `role` holds it (`flag` is what gives this one a folder of its own),
    or the folder cannot be written.
    """
    private_dir(folder)
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"the folder {folder}: {error.strerror}") from error
    try:
        _lock(descriptor, folder, role, flag)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, role: str, flag: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace") or "unknown"
        raise ConfigError(
            f"another {role} (process {holder}) uses {folder}: stop it, or give this one its own "
            f"folder with {flag}",
            reason="state_in_use",
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
