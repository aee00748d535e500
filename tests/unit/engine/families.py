"""Tiny random models of the families that are more than a plain layer, by transformers.

They are saved as transformers saves them and read back as plait reads them, so that names, layouts
and configuration are held too.
"""

import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from node.engine.tensor_bytes import tensor_from_bytes
from plait.models.folder import open_folder
from plait.types import ModelId, ModelSpec

VOCAB: Final = 97
_SIZES: Final[dict[str, Any]] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "attn_implementation": "eager",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WINDOW: Final = 5
_FACTORS: Final = {"short_factor": [1.0, 1.25, 1.5], "long_factor": [1.0, 3.0, 9.0]}
Build = Callable[[int], PreTrainedModel]


def _phi3(num_layers: int, **more: Any) -> PreTrainedModel:
    """Three of four pairs of channels are rotated."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
    settings = {**_SIZES, "rope_parameters": rope, "sliding_window": 9, **more}
    return Phi3ForCausalLM(Phi3Config(**settings, num_hidden_layers=num_layers))


def _phi3_longrope(num_layers: int) -> PreTrainedModel:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 16,
        **_FACTORS,
    }
    return _phi3(
        num_layers,
        rope_parameters=rope,
        sliding_window=None,
        original_max_position_embeddings=16,
    )


def _gemma2(num_layers: int) -> PreTrainedModel:
    config = Gemma2Config(
        **_SIZES,
        num_hidden_layers=num_layers,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=_WINDOW,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    )
    return Gemma2ForCausalLM(config)


def _gemma3(num_layers: int) -> PreTrainedModel:
    """Every other layer sees everything, by the settings of new files."""
    kinds = ["sliding_attention", "full_attention"] * num_layers
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
    }
    config = Gemma3TextConfig(
        **_SIZES,
        num_hidden_layers=num_layers,
        head_dim=16,
        query_pre_attn_scalar=24,
        sliding_window=_WINDOW,
        layer_types=kinds[:num_layers],
        rope_parameters=rope,
    )
    return Gemma3ForCausalLM(config)


def _mixtral(num_layers: int) -> PreTrainedModel:
    config = MixtralConfig(
        **_SIZES, num_hidden_layers=num_layers, num_local_experts=4, num_experts_per_tok=2
    )
    return MixtralForCausalLM(config)


def _qwen3_moe(num_layers: int, *, norm_topk_prob: bool = True) -> PreTrainedModel:
    config = Qwen3MoeConfig(
        **_SIZES | {"head_dim": 16},
        num_hidden_layers=num_layers,
        moe_intermediate_size=32,
        num_experts=6,
        num_experts_per_tok=3,
        norm_topk_prob=norm_topk_prob,
    )
    return Qwen3MoeForCausalLM(config)


def _smollm3(num_layers: int) -> PreTrainedModel:
    """The last layer of three, or the fourth of more, is not rotated."""
    every = min(4, num_layers)
    config = SmolLM3Config(**_SIZES, num_hidden_layers=num_layers, no_rope_layer_interval=every)
    return SmolLM3ForCausalLM(config)


def _gpt_oss(num_layers: int) -> PreTrainedModel:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 20.0,  # its ramp ends between two channels
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 32,
    }
    config = GptOssConfig(
        **{**_SIZES, "intermediate_size": 32},
        num_hidden_layers=num_layers,
        head_dim=8,
        sliding_window=_WINDOW,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters=rope,
    )
    return GptOssForCausalLM(config)


def _qwen2_mixed(num_layers: int) -> PreTrainedModel:
    config = Qwen2Config(
        **_SIZES,
        num_hidden_layers=num_layers,
        use_sliding_window=True,
        sliding_window=_WINDOW,
        max_window_layers=1,
    )
    return Qwen2ForCausalLM(config)


FAMILIES: Final[Mapping[str, Build]] = {
    "phi3": _phi3,
    "phi3-longrope": _phi3_longrope,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "qwen3_moe-shares": lambda layers: _qwen3_moe(layers, norm_topk_prob=False),
    "smollm3": _smollm3,
    "gpt_oss": _gpt_oss,
    "qwen2-mixed": _qwen2_mixed,
}


def scatter(reference: PreTrainedModel) -> None:
    """Weights large enough to make differences visible."""
    norms_from_one = "gemma" in reference.config.model_type
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
                if norms_from_one:
                    parameter.sub_(1.0)
            else:
                parameter.normal_(0.0, 0.15)
    reference.train(mode=False)


@cache
def read_back(
    kind: str, num_layers: int
) -> tuple[PreTrainedModel, ModelSpec, dict[str, torch.Tensor]]:
    """transformers' model, and its shape and tensors as plait reads them from its files."""
    torch.manual_seed(7)
    reference = FAMILIES[kind](num_layers)
    scatter(reference)
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        source = open_folder(Path(folder), ModelId(f"tiny-{kind}"))
        tensors: dict[str, torch.Tensor] = {}
        for name in source.tensor_names():
            data = source.read(name)
            tensors[name] = tensor_from_bytes(data.buffer, data.dtype, data.shape)
        source.close()
    return reference, source.spec, tensors
