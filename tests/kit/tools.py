"""Programs that some tests run, and what happens where one is missing.

At a desk a test without its program is skipped, and the reason names the Debian package. Where
REQUIRED is set, as in CI, which installs them all, that is a failure: nothing is skipped silently.
"""

import os
import socket
from collections.abc import Mapping

import pytest

REQUIRED = "PLAIT_TESTS_NEED_TOOLS"


def without(what: str, package: str, environment: Mapping[str, str] = os.environ) -> str:
    """The reason for a skip. Raises RuntimeError where nothing may be missing."""
    reason = f"{what} is not installed: apt-get install {package}"
    if environment.get(REQUIRED):
        raise RuntimeError(f"{reason} ({REQUIRED} is set, so this is no skip)")
    return reason


def needs(found: object, what: str, package: str) -> pytest.MarkDecorator:
    """A mark for tests that run `what`, of which `found` is a path or None."""
    return pytest.mark.skipif(not found, reason="" if found else without(what, package))


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
