"""A store in a temporary folder, under a clock that the test moves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.shell.store import Store, open_store
from plait.clock import ManualClock
from plait.crypto.authority import CertificateAuthority

CA = CertificateAuthority.create(ManualClock())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Store]:
    async with open_store(
        tmp_path / "store.db", clock, ca_der=CA.certificate_der, public_address="h.example:7420"
    ) as opened:
        yield opened
