"""A tiny random Llama in a folder, in Hugging Face's form, made without torch."""

import json
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

from plait.models import load_spec, resolve, span_tensor_names
from plait.types import ModelSpec

VOCAB_SIZE = 257
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB_SIZE,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "eos_token_id": 256,
    "torch_dtype": "float32",
}
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_tiny_model(
    folder: Path, *, seed: int = 7, context_tokens: int = 512, times_wide: int = 1
) -> ModelSpec:
    """Weights, configuration, tokenizer (a token per byte, 256 ends) and chat template. Rows of a
    model that is several `times_wide` are so many times longer."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, "max_position_embeddings": context_tokens}
    for name in ("hidden_size", "intermediate_size", "head_dim"):
        config[name] = CONFIG[name] * times_wide  # type: ignore[operator]
    (folder / "config.json").write_text(json.dumps(config))
    settings = {"chat_template": TEMPLATE, "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    _tokenizer().save(str(folder / "tokenizer.json"))
    spec = load_spec(resolve(str(folder)))
    rng = np.random.default_rng(seed)
    tensors = {
        name: rng.normal(0, 0.05, _shape(name, spec)).astype(np.float32)
        for name in span_tensor_names(spec, spec.whole)
    }
    save_file(tensors, folder / "model.safetensors")
    return spec


def _shape(name: str, spec: ModelSpec) -> tuple[int, ...]:
    hidden, mlp = spec.hidden_size, spec.intermediate_size
    q_width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    leaf = name.removesuffix(".weight").rpartition(".")[2]
    shapes = {
        "embed_tokens": (spec.vocab_size, hidden),
        "lm_head": (spec.vocab_size, hidden),
        "q_proj": (q_width, hidden),
        "k_proj": (kv_width, hidden),
        "v_proj": (kv_width, hidden),
        "o_proj": (hidden, q_width),
        "gate_proj": (mlp, hidden),
        "up_proj": (mlp, hidden),
        "down_proj": (hidden, mlp),
    }
    return shapes.get(leaf, (hidden,))


def _tokenizer() -> tokenizers.Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)} | {"<eos>": 256}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return backend
