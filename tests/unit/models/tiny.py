"""Tiny random models, written as a folder of safetensors or as a GGUF."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from plait.models import TensorSource
from plait.models.layout import expected_shapes
from plait.models.naming import resolve
from plait.models.opening import open_source
from plait.types import Architecture, DType, ModelId, ModelSource, ModelSpec, SourceKind

Tensors = dict[str, NDArray[np.float32]]

_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """A shape and random weights."""

    spec: ModelSpec
    tensors: Tensors = field(repr=False)


def tiny_model(
    architecture: Architecture = Architecture.LLAMA,
    *,
    num_layers: int = 3,
    tie_embeddings: bool = True,
    llama_biases: bool = False,
    vocab_size: int = 96,
    head_dim: int = 16,
) -> TinyModel:
    """Widths are multiples of 32, so that blocks of every simple quantisation fit."""
    spec = ModelSpec(
        model_id=ModelId("tiny"),
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=head_dim,
        vocab_size=vocab_size,
        context_tokens_max=128,
        norm_eps=1e-5,
        rope_theta=10000.0,
        tie_embeddings=tie_embeddings,
        attention_bias=architecture is Architecture.QWEN2 or llama_biases,
        attention_output_bias=llama_biases,
        mlp_bias=llama_biases,
        qk_norm=architecture is Architecture.QWEN3,
        eos_token_ids=(2,),
    )
    rng = np.random.default_rng(7)
    tensors = {
        name: rng.standard_normal(shape, dtype=np.float32) * np.float32(0.2)
        for name, shape in expected_shapes(spec).items()
    }
    return TinyModel(spec=spec, tensors=tensors)


def config_json(spec: ModelSpec) -> dict[str, object]:
    """The config.json that describes `spec`."""
    return {
        "model_type": spec.architecture.value,
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.context_tokens_max,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope_theta,
        "tie_word_embeddings": spec.tie_embeddings,
        "attention_bias": spec.attention_output_bias,
        "mlp_bias": spec.mlp_bias,
        "hidden_act": "silu",
        "eos_token_id": list(spec.eos_token_ids),
        "sliding_window": None,
    }


def write_folder(folder: Path, model: TinyModel, *, num_files: int = 1) -> ModelSource:
    """A Hugging Face folder, with an index where there are several files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(model.spec)))
    names = list(model.tensors)
    if num_files == 1:
        save_file(model.tensors, folder / "model.safetensors")
        return resolve(str(folder))
    weight_map: dict[str, str] = {}
    for number in range(num_files):
        file_name = f"model-{number + 1:05}-of-{num_files:05}.safetensors"
        mine = names[number::num_files]
        save_file({name: model.tensors[name] for name in mine}, folder / file_name)
        weight_map.update(dict.fromkeys(mine, file_name))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return resolve(str(folder))


def write_gguf(
    path: Path,
    model: TinyModel,
    *,
    quant: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    architecture: str | None = None,
    extra: dict[str, NDArray[np.float32]] | None = None,
    num_tokens: int = 0,
    counts: dict[str, int] | None = None,
    texts: dict[str, str] | None = None,
) -> ModelSource:
    """A GGUF as llama.cpp's converter writes it: q and k permuted for "llama", not for Qwen."""
    spec = model.spec
    name = architecture or spec.architecture.value
    writer = gguf.GGUFWriter(path, name)
    add_shape(writer, spec)
    for key, count in (counts or {}).items():
        writer.add_uint32(key, count)
    for key, text in (texts or {}).items():
        writer.add_string(key, text)
    writer.add_chat_template("{{ messages }}")
    if num_tokens:
        writer.add_token_list([f"token-{i}" for i in range(num_tokens)])
        writer.add_token_types([1] * num_tokens)
    for hf_name, tensor in model.tensors.items():
        values = tensor
        if name == "llama" and ".q_proj." in hf_name:
            values = permute(tensor, spec.num_heads)
        elif name == "llama" and ".k_proj." in hf_name:
            values = permute(tensor, spec.num_kv_heads)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(hf_name), values)
        else:
            writer.add_tensor(gguf_name(hf_name), gguf.quantize(values, quant), raw_dtype=quant)
    for tensor_name, values in (extra or {}).items():
        writer.add_tensor(tensor_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelSource(kind=SourceKind.PATH, name=str(path))


def permute(weights: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows (head, half, pair) into (head, pair, half), element by element: the naive twin."""
    head_dim = len(weights) // num_heads
    out = np.empty_like(weights)
    for head in range(num_heads):
        for row in range(head_dim):
            half, pair = divmod(row, head_dim // 2)
            out[head * head_dim + pair * 2 + half] = weights[head * head_dim + row]
    return out


def gguf_name(hf_name: str) -> str:
    """Hugging Face's name in llama.cpp's words."""
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if hf_name in top:
        return top[hf_name]
    _, _, layer, rest = hf_name.split(".", 3)
    leaf, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_GGUF_NAMES[leaf]}.{kind}"


def values_of(source: TensorSource, name: str) -> NDArray[np.float32]:
    """One tensor as float32 (bfloat16 widened)."""
    data = source.read(name)
    if data.dtype is DType.BFLOAT16:
        bits = np.frombuffer(data.buffer, dtype="<u2").astype(np.uint32) << 16
        return bits.view(np.float32).reshape(data.shape)
    kind = "<f4" if data.dtype is DType.FLOAT32 else "<f2"
    return np.frombuffer(data.buffer, dtype=kind).astype(np.float32).reshape(data.shape)


def assert_same_weights(source: ModelSource, model: TinyModel, *, atol: float = 0.0) -> None:
    """Every tensor of `model` comes out of `source`."""
    opened = open_source(source)
    try:
        assert opened.tensor_names() == frozenset(model.tensors)
        for name, expected in model.tensors.items():
            np.testing.assert_allclose(values_of(opened, name), expected, atol=atol, rtol=0)
    finally:
        opened.close()


def add_shape(writer: gguf.GGUFWriter, spec: ModelSpec) -> None:
    """The keys that every architecture has."""
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(spec.context_tokens_max)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_rope_freq_base(spec.rope_theta)
    writer.add_eos_token_id(2)
    writer.add_tokenizer_model("gpt2")
