"""A family that plait does not run is refused before its weights come over the network."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plait.errors import ModelError
from plait.models import load_spec, pin, pull, resolve
from plait.types import ModelSource
from tests.unit.models.hub_server import HubServer, only_hub
from tests.unit.models.tiny import tiny_model, write_folder, write_gguf


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    folder = tmp_path / "hub"
    write_folder(folder, tiny_model(num_layers=12))
    with only_hub(folder, tmp_path / "models", monkeypatch) as server:
        yield server


@pytest.mark.parametrize("ask", [pull, load_spec, pin])
def test_by_its_configuration(hub: HubServer, ask: Callable[[ModelSource], object]) -> None:
    config = json.loads((hub.folder / "config.json").read_text())
    (hub.folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(ModelError, match=r"mamba.*llama, qwen2, qwen3, .*gpt_oss") as caught:
        ask(resolve("org/tiny"))
    assert caught.value.code == "model_unsupported"
    assert hub.large_bytes == 0


def test_by_the_header_of_a_gguf(hub: HubServer) -> None:
    model = tiny_model(num_layers=30, vocab_size=20_000)
    write_gguf(hub.folder / "tiny-f32.gguf", model, architecture="mamba")
    with pytest.raises(ModelError, match=r"mamba.*llama, qwen2, qwen3, .*gpt-oss"):
        pull(resolve("org/tiny/tiny-f32.gguf"))
    assert hub.large_bytes <= 2**20
