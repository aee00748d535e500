"""The real SmolLM2: one network for all tests that only ask it questions, and what its answers are
held against. They stay in one process (`tests/conftest.py`)."""

from collections.abc import Iterator

import pytest
from transformers import LlamaForCausalLM

from coordinator.gateway.tokens import Tokenizer
from coordinator.models import served_models
from plait.cli.local_network import LocalNetwork
from tests.kit.network import SMOLLM, serving_network, smollm
from tests.kit.reference import reference_model


@pytest.fixture(scope="package")
def smollm_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """SmolLM2 over three node processes, of which none can hold the whole model. Leave it as it
    was: kill nothing, add nothing."""
    _, spec = smollm()
    home = tmp_path_factory.mktemp("smollm-network")
    with serving_network(home, SMOLLM, spec, num_stages=3) as network:
        yield network


@pytest.fixture(scope="package")
def tokenizer() -> Tokenizer:
    """As a coordinator reads it."""
    (model,) = served_models([SMOLLM])
    return model.tokenizer


@pytest.fixture(scope="package")
def reference() -> LlamaForCausalLM:
    """transformers' own, with these weights."""
    return reference_model()
