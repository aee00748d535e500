"""Our reading of weights against transformers' own, for every family and both formats."""

from pathlib import Path

import gguf
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from plait.models import open_source, resolve, span_tensor_names
from plait.types import Architecture, ModelSource
from tests.unit.models.tiny import tiny_model, write_gguf

pytestmark = pytest.mark.slow

SHAPE: dict[str, object] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 96,
    "head_dim": 16,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig.from_dict({**SHAPE, "attention_bias": True, "mlp_bias": True}),
    "llama3": LlamaConfig.from_dict(
        {**SHAPE, "tie_word_embeddings": True, "rope_parameters": LLAMA3}
    ),
    "qwen2": Qwen2Config.from_dict(SHAPE),
    "qwen3": Qwen3Config.from_dict({**SHAPE, "tie_word_embeddings": True}),
    "mistral": MistralConfig.from_dict({**SHAPE, "sliding_window": 32}),
}
ARCHITECTURES = [Architecture.LLAMA, Architecture.QWEN2, Architecture.QWEN3]


def assert_equals_state_dict(source: ModelSource, model: torch.nn.Module) -> None:
    opened = open_source(source)
    state = model.state_dict()
    names = span_tensor_names(opened.spec, opened.spec.whole)
    tied = {"lm_head.weight"} if opened.spec.tie_embeddings else set()
    assert set(names) == set(state) - tied
    for name in names:
        data = opened.read(name)
        ours = torch.frombuffer(data.buffer, dtype=getattr(torch, data.dtype.value))
        assert torch.equal(ours.reshape(data.shape), state[name]), name
    opened.close()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_folders_that_transformers_saves(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    config = CONFIGS[name]
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    source = resolve(str(tmp_path))
    assert_equals_state_dict(source, model)
    spec = open_source(source).spec
    assert spec.rope_theta == config.rope_parameters["rope_theta"]
    assert spec.norm_eps == config.rms_norm_eps
    assert spec.context_tokens_max == config.max_position_embeddings
    assert spec.sliding_window_tokens == (32 if name == "mistral" else None)
    assert (spec.rope_scaling is not None) == (name == "llama3")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("quant", ["F32", "Q8_0", "Q4_1"])
def test_ggufs_that_transformers_loads(
    tmp_path: Path, architecture: Architecture, quant: str
) -> None:
    # transformers takes 128 for every Qwen3 GGUF, whatever its head width
    head_dim = 128 if architecture is Architecture.QWEN3 else 16
    model = tiny_model(architecture, tie_embeddings=False, head_dim=head_dim)
    source = write_gguf(
        tmp_path / "tiny.gguf", model, quant=gguf.GGMLQuantizationType[quant], num_tokens=96
    )
    loaded = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="tiny.gguf", dtype=torch.float32
    )
    assert_equals_state_dict(source, loaded)
