"""Safetensors written as a GGUF: the same model, the same tokenizer, or a refusal."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator.gateway.gguf_tokenizer import tokenizer_from_gguf
from coordinator.gateway.tokens import tokenizer_from_folder
from plait.cli.app import app
from plait.errors import ModelError
from plait.models import load_spec, open_source, resolve, tokenizer_source
from plait.models.gguf_arrays import read_metadata
from plait.models.quantizing import quantize_model
from plait.types import Architecture, ModelId
from tests.kit.tiny_model import write_tiny_model
from tests.unit.models.tiny import TinyModel, tiny_model, values_of, write_folder

TEXT = "Hello, wörld! 1234 <eos> and\n\n  more"


def edited(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize(
    ("kind", "atol"), [("f32", 0.0), ("f16", 1e-4), ("q8_0", 2e-3), ("q4_0", 0.03)]
)
def test_tensors_shape_and_tokenizer_are_the_folders(
    kind: str, atol: float, tmp_path: Path
) -> None:
    folder, out = tmp_path / "tiny", tmp_path / "out.gguf"
    write_tiny_model(folder)
    heard: list[tuple[str, int, int]] = []
    written = quantize_model(
        resolve(str(folder)), out, kind, progress=lambda *told: heard.append(told)
    )
    assert written.num_bytes == out.stat().st_size
    assert heard[-1][1] == heard[-1][2] > 0
    source, made = open_source(resolve(str(folder))), open_source(resolve(str(out)))
    assert source.tensor_names() == made.tensor_names()
    for name in source.tensor_names():
        np.testing.assert_allclose(
            values_of(made, name), values_of(source, name), atol=atol, rtol=0
        )
    assert replace(made.spec, model_id=source.spec.model_id) == replace(
        source.spec, norm_eps=float(np.float32(1e-5))
    )
    ours = tokenizer_from_gguf(read_metadata(out))
    theirs = tokenizer_from_folder(folder)
    assert ours.encode(TEXT, with_special=True) == theirs.encode(TEXT, with_special=True)
    template = tokenizer_source(resolve(str(out))).chat_template
    assert template == tokenizer_source(resolve(str(folder))).chat_template
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("architecture", [Architecture.QWEN2, Architecture.QWEN3])
def test_families_that_are_not_permuted(architecture: Architecture, tmp_path: Path) -> None:
    model = tiny_model(architecture)
    folder = tmp_path / "tiny"
    write_folder(folder, model)
    with_tokenizer(folder, tmp_path, model)
    quantize_model(resolve(str(folder)), tmp_path / "out.gguf", "f32")
    made = open_source(resolve(str(tmp_path / "out.gguf")))
    for name, expected in model.tensors.items():
        np.testing.assert_array_equal(values_of(made, name), expected)


def with_tokenizer(folder: Path, tmp_path: Path, model: TinyModel) -> None:
    """A vocabulary of the model's size."""
    other = tmp_path / "other"
    write_tiny_model(other)
    layout = json.loads((other / "tokenizer.json").read_text())
    vocabulary = layout["model"]["vocab"]
    kept = {t: i for t, i in vocabulary.items() if i < model.spec.vocab_size - 1}
    layout["model"]["vocab"] = kept
    layout["added_tokens"] = []
    (folder / "tokenizer.json").write_text(json.dumps(layout))


def test_llama3s_rope_comes_back_from_its_factors(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    write_tiny_model(folder)
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    edited(folder / "config.json", rope_scaling=scaling)
    quantize_model(resolve(str(folder)), tmp_path / "out.gguf", "q8_0")
    made = load_spec(resolve(str(tmp_path / "out.gguf")), model_id=ModelId("x"))
    assert made.rope_scaling == load_spec(resolve(str(folder))).rope_scaling


@pytest.mark.parametrize(
    ("file", "changes", "said"),
    [
        ("config.json", {"model_type": "smollm3"}, "no GGUF of smollm3 models"),
        ("config.json", {"eos_token_id": [1, 2, 3, 4]}, "ends with 4 tokens"),
        ("config.json", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("tokenizer.json", {"pre_tokenizer": {"type": "Whitespace"}}, "without a name"),
        ("tokenizer.json", {"model": {"type": "Unigram", "vocab": []}}, "not byte-level BPE"),
    ],
)
def test_what_a_gguf_cannot_say_is_refused_and_leaves_nothing(
    file: str, changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    write_tiny_model(folder)
    edited(folder / file, **changes)
    with pytest.raises(ModelError, match=said):
        quantize_model(resolve(str(folder)), tmp_path / "out.gguf", "q8_0")
    assert not list(tmp_path.glob("out.gguf*"))


def test_the_command_says_what_it_wrote(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    out = tmp_path / "out.gguf"
    arguments = ["model", "quantize", str(tmp_path / "tiny"), "--to", "q8_0", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "wrote" in result.output and "sha256" in result.output
    assert open_source(resolve(str(out))).tensor_names()
