"""config.json of four families, in old and new spellings, and what is refused."""

import json
from pathlib import Path

import pytest

from plait.errors import ModelError
from plait.models import load_spec, resolve
from plait.types import Architecture, ModelSpec, RopeScaling
from tests.unit.models.tiny import config_json, tiny_model


def spec_of(
    folder: Path,
    changes: dict[str, object],
    *,
    architecture: Architecture = Architecture.LLAMA,
    generation: dict[str, object] | None = None,
) -> ModelSpec:
    """The spec of a tiny configuration with `changes`; a change to ... removes the key."""
    content = {**config_json(tiny_model(architecture).spec), **changes}
    content = {key: value for key, value in content.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(content))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return load_spec(resolve(str(folder)))


def test_llama3_scaling_in_the_old_and_the_new_spelling(tmp_path: Path) -> None:
    values = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    wanted = RopeScaling(
        kind="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_context_tokens=8192,
    )
    old = spec_of(tmp_path, {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **values}})
    new = spec_of(
        tmp_path,
        {
            "rope_theta": ...,
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **values},
        },
    )
    assert old.rope_scaling == new.rope_scaling == wanted
    assert old.rope_theta == new.rope_theta == 5e5


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn"])
def test_other_scalings_take_the_context_as_their_origin(tmp_path: Path, kind: str) -> None:
    spec = spec_of(tmp_path, {"rope_scaling": {"type": kind, "factor": 4}})
    assert spec.rope_scaling == RopeScaling(kind=kind, factor=4.0, original_context_tokens=128)


def test_default_rope_parameters_are_no_scaling(tmp_path: Path) -> None:
    section = {"rope_type": "default", "rope_theta": 1e6}
    spec = spec_of(tmp_path, {"rope_parameters": section})
    assert (spec.rope_theta, spec.rope_scaling) == (1e6, None)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"type": "longrope", "factor": 4.0}, "short_factor"),
        (
            {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
            "1 longrope factors for 8 pairs",
        ),
        ({"type": "longrope", "short_factor": [0.0]}, "short_factor"),
        ({"rope_type": "proportional", "factor": 4.0}, "proportional"),
        ({"rope_type": "linear"}, "'factor'"),
        ({"rope_type": "linear", "factor": float("nan")}, "factor"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial"),
    ],
)
def test_scalings_that_are_refused(tmp_path: Path, section: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        spec_of(tmp_path, {"rope_scaling": section})


def test_yarn_in_all_its_settings(tmp_path: Path) -> None:
    section: dict[str, object] = {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    }
    scaling = spec_of(tmp_path, {"rope_scaling": section}).rope_scaling
    assert scaling == RopeScaling(
        kind="yarn",
        factor=32.0,
        beta_fast=16.0,
        beta_slow=2.0,
        truncates=False,
        original_context_tokens=64,
    )
    section["mscale"], section["mscale_all_dim"] = 1.0, 0.5
    scaling = spec_of(tmp_path, {"rope_scaling": section}).rope_scaling
    assert scaling is not None and scaling.attention_factor == pytest.approx(1.3466 / 1.1733, 1e-3)
    section["attention_factor"] = 1.25
    scaling = spec_of(tmp_path, {"rope_scaling": section}).rope_scaling
    assert scaling is not None and scaling.attention_factor == 1.25


def test_head_width_is_derived_where_it_is_absent_or_null(tmp_path: Path) -> None:
    assert spec_of(tmp_path, {"head_dim": ...}).head_dim == 16
    assert spec_of(tmp_path, {"head_dim": None}).head_dim == 16
    assert spec_of(tmp_path, {"head_dim": ...}, architecture=Architecture.QWEN3).head_dim == 128


def test_biases_by_family(tmp_path: Path) -> None:
    changes: dict[str, object] = {"attention_bias": True, "mlp_bias": True}
    llama = spec_of(tmp_path, changes)
    assert (llama.attention_bias, llama.attention_output_bias, llama.mlp_bias) == (True,) * 3
    qwen2 = spec_of(tmp_path, {}, architecture=Architecture.QWEN2)
    assert (qwen2.attention_bias, qwen2.attention_output_bias) == (True, False)
    mistral = spec_of(tmp_path, changes, architecture=Architecture.MISTRAL)
    assert (mistral.attention_bias, mistral.mlp_bias) == (False, False)


def test_sliding_windows(tmp_path: Path) -> None:
    mistral = Architecture.MISTRAL
    assert spec_of(tmp_path, {}, architecture=mistral).sliding_window_tokens is None
    given = spec_of(tmp_path, {"sliding_window": 32}, architecture=mistral)
    assert given.sliding_window_tokens == 32
    without: dict[str, object] = {"sliding_window": ..., "max_position_embeddings": 9000}
    assert spec_of(tmp_path, without, architecture=mistral).sliding_window_tokens == 4096
    wide = spec_of(tmp_path, {"sliding_window": 128}, architecture=mistral)
    assert wide.sliding_window_tokens is None  # as long as the context: full attention


def test_qwens_window_counts_only_where_it_is_used(tmp_path: Path) -> None:
    def window(**changes: object) -> int | None:
        return windowed(**changes).sliding_window_tokens

    def windowed(**changes: object) -> ModelSpec:
        fields = {"sliding_window": 32, **changes}
        return spec_of(tmp_path, fields, architecture=Architecture.QWEN2)

    assert window() is None
    assert window(use_sliding_window=False, max_window_layers=0) is None
    assert window(use_sliding_window=True, max_window_layers=3) is None
    assert window(use_sliding_window=True, max_window_layers=0) == 32
    some = windowed(use_sliding_window=True, max_window_layers=1)
    assert [some.window_of(layer) for layer in range(3)] == [None, 32, 32]
    slides, full = "sliding_attention", "full_attention"
    assert window(use_sliding_window=True, layer_types=[slides] * 3) == 32
    assert window(use_sliding_window=True, layer_types=[full] * 3) is None
    mixed = windowed(use_sliding_window=True, layer_types=[slides, full, slides])
    assert [mixed.window_of(layer) for layer in range(3)] == [32, None, 32]
    with pytest.raises(ModelError, match="chunked"):
        windowed(use_sliding_window=True, layer_types=[full, "chunked", full])
    with pytest.raises(ModelError, match="layer_types"):
        windowed(use_sliding_window=True, layer_types=[slides])


def test_end_ids_come_from_the_generation_config_first(tmp_path: Path) -> None:
    assert spec_of(tmp_path, {"eos_token_id": 7}).eos_token_ids == (7,)
    generation: dict[str, object] = {"eos_token_id": [128001, 128008, 128009]}
    spec = spec_of(tmp_path, {"eos_token_id": 7}, generation=generation)
    assert spec.eos_token_ids == (128001, 128008, 128009)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model_type": "mamba"},
            "mamba.*llama, qwen2, qwen3, mistral, phi3, gemma2, gemma3, mixtral",
        ),
        ({"model_type": ...}, "unknown"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 2}}, "gptq"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"head_dim": 15}, "pairs"),
        ({"hidden_size": ...}, "hidden_size"),
        ({"hidden_size": -4}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 10**6}, "layers"),
        ({"vocab_size": True}, "vocab_size"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"eos_token_id": "x"}, "eos_token_id"),
        ({"rope_scaling": 4}, "rope_scaling"),
        ({"partial_rotary_factor": 0.5}, "partial"),
    ],
)
def test_what_is_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        spec_of(tmp_path, changes)


@pytest.mark.parametrize("content", ["[]", "{", "\x00"])
def test_a_config_that_is_no_json_object(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        load_spec(resolve(str(tmp_path)))
