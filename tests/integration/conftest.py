"""One real network for all tests that only ask it questions."""

from collections.abc import Iterator

import pytest

from plait.cli.local_network import LocalNetwork
from tests.kit.network import SMOLLM, serving_network, smollm


@pytest.fixture(scope="session")
def smollm_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """SmolLM2 over three node processes, of which none can hold the whole model. Leave it as it
    was: kill nothing, add nothing."""
    _, spec = smollm()
    home = tmp_path_factory.mktemp("smollm-network")
    with serving_network(home, SMOLLM, spec, num_stages=3) as network:
        yield network
