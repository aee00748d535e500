"""Configurations as published, in the old keys, and the parameters that models are known for."""

import json
from pathlib import Path

import pytest

from plait.errors import ModelError
from plait.models.folder import folder_spec
from plait.types import Activation, ModelId, ModelSpec

_GPT_OSS: dict[str, object] = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "num_local_experts": 32,
    "experts_per_token": 4,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "rope_theta": 150000,
    "quantization_config": {"quant_method": "mxfp4"},
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
}
_GEMMA2: dict[str, object] = {
    "model_type": "gemma2",
    "num_hidden_layers": 42,
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 256000,
    "hidden_act": "gelu_pytorch_tanh",
}
_GEMMA3: dict[str, object] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "eos_token_id": [1, 106],
    "vision_config": {"hidden_size": 1152},
    "text_config": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
}
_MIXTRAL: dict[str, object] = {
    "model_type": "mixtral",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "sliding_window": None,
}
_QWEN3_MOE: dict[str, object] = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "max_window_layers": 48,
    "sliding_window": None,
    "use_sliding_window": False,
}
_PHI3: dict[str, object] = {
    "model_type": "phi3",
    "num_hidden_layers": 32,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "vocab_size": 32064,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "sliding_window": 262144,
    "rope_scaling": {"type": "su", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
}
_SMOLLM3: dict[str, object] = {
    "model_type": "smollm3",
    "num_hidden_layers": 36,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_attention_heads": 16,
    "vocab_size": 128256,
    "no_rope_layers": [1, 1, 1, 0] * 9,
}


def spec_of(folder: Path, config: dict[str, object]) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(config))
    return folder_spec(folder, ModelId("published"))


@pytest.mark.parametrize(
    ("config", "billions", "active_billions"),
    [
        (_PHI3, 3.82, 3.82),
        (_GEMMA2, 9.24, 9.24),
        (_GEMMA3, 3.88, 3.88),
        (_MIXTRAL, 46.7, 12.9),
        (_QWEN3_MOE, 30.5, 3.35),
        (_SMOLLM3, 3.08, 3.08),
        (_GPT_OSS, 20.9, 3.6 + 0.58),  # its makers count no embedding among the active ones
    ],
)
def test_published_models_have_as_many_parameters_as_they_say(
    tmp_path: Path, config: dict[str, object], billions: float, active_billions: float
) -> None:
    spec = spec_of(tmp_path, config)
    ends = spec.embedding_params * (1 if spec.tie_embeddings else 2)
    total = spec.num_layers * spec.layer_params + ends
    assert total / 1e9 == pytest.approx(billions, rel=0.01)
    active = spec.num_layers * spec.active_layer_params + ends
    assert active / 1e9 == pytest.approx(active_billions, rel=0.02)


def test_gpt_oss(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, _GPT_OSS)
    assert spec.attention_sinks and spec.mlp_bias and spec.attention_output_bias
    assert [spec.window_of(layer) for layer in range(4)] == [128, None, 128, None]
    assert spec.rope_scaling is not None and not spec.rope_scaling.truncates
    assert (spec.num_experts, spec.experts_per_token) == (32, 4)


def test_gemma2(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, _GEMMA2)
    assert (spec.attention_softcap, spec.logit_softcap) == (50.0, 30.0)
    assert (spec.activation, spec.post_norms) == (Activation.GELU_TANH, True)
    assert (spec.head_dim, spec.attention_scale) == (256, 256**-0.5)
    assert spec.tie_embeddings and spec.embedding_scale == 3584**0.5
    assert [spec.window_of(layer) for layer in range(3)] == [4096, None, 4096]
    uncapped = spec_of(tmp_path, {**_GEMMA2, "attn_logit_softcapping": None})
    assert uncapped.attention_softcap is None


def test_gemma3_that_sees_pictures_is_read_for_its_text(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, _GEMMA3)
    full = [layer for layer in range(34) if spec.window_of(layer) is None]
    assert full == [5, 11, 17, 23, 29]
    assert (spec.rope_theta, spec.local_rope_theta) == (1e6, 1e4)
    assert spec.rope_scaling is not None and spec.rope_scaling.kind == "linear"
    assert spec.eos_token_ids == (1, 106) and spec.qk_norm


def test_phi3s_first_files_say_su(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, _PHI3)
    assert spec.rope_scaling is not None and spec.rope_scaling.kind == "longrope"
    assert spec.rope_scaling.factor == 32.0
    assert spec.sliding_window_tokens is None  # longer than the context
    assert spec.num_kv_heads == spec.num_heads


@pytest.mark.parametrize(
    ("config", "changes", "said"),
    [
        (_QWEN3_MOE, {"mlp_only_layers": [0]}, "experts in some layers only"),
        (_QWEN3_MOE, {"decoder_sparse_step": 2}, "experts in some layers only"),
        (_MIXTRAL, {"num_experts_per_tok": 9}, "9 of 8 experts"),
        (_GPT_OSS, {"swiglu_limit": 5.0}, "swiglu_limit"),
        (_GPT_OSS, {"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
        (_GEMMA2, {"hidden_activation": "relu"}, "relu"),
        (_GEMMA2, {"use_bidirectional_attention": True}, "both directions"),
        (_SMOLLM3, {"no_rope_layers": [1, 0]}, "all 36 layers"),
        (_PHI3, {"partial_rotary_factor": 0.005}, "cannot be rotated in pairs"),
        (_MIXTRAL, {"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
    ],
)
def test_variants_that_are_refused(
    tmp_path: Path, config: dict[str, object], changes: dict[str, object], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        spec_of(tmp_path, {**config, **changes})
