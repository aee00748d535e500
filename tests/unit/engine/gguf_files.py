"""GGUFs of tiny random models: names by the gguf package's own tables, layouts and metadata as
llama.cpp's converter has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Quant
from numpy.typing import NDArray

from plait.types import ModelSpec
from tests.unit.models.tiny import add_shape

NAMES: Final[Mapping[str, str]] = {
    "phi3": "phi3",
    "phi3-longrope": "phi3",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
    "smollm3": "smollm3",
    "gpt_oss": "gpt-oss",
}
"""llama.cpp's word for each kind of `tests.unit.engine.families`."""

Tensors = dict[str, torch.Tensor]


def write_gguf(
    path: Path, kind: str, spec: ModelSpec, tensors: Tensors, *, experts: Quant = Quant.F32
) -> None:
    """`tensors` are named as plait names them."""
    name = NAMES[kind]
    writer = gguf.GGUFWriter(path, name)
    _add_metadata(writer, name, spec)
    arch = next(a for a, word in gguf.MODEL_ARCH_NAMES.items() if word == name)
    names = gguf.get_tensor_name_map(arch, spec.num_layers)
    for hf_name, values in _as_converted(name, spec, tensors).items():
        stored = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, hf_name
        stored = stored if stored.endswith((".weight", ".bias")) else f"{stored}.weight"
        is_expert = "_exps.weight" in stored
        quant = experts if is_expert else Quant.F32
        data = values if quant is Quant.F32 else gguf.quantize(values, quant)
        writer.add_tensor(stored, data, raw_dtype=quant)
    scaling = spec.rope_scaling
    if scaling is not None and scaling.kind == "longrope":
        for word, factors in (("short", scaling.short_factors), ("long", scaling.long_factors)):
            writer.add_tensor(f"rope_factors_{word}.weight", np.array(factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_metadata(writer: gguf.GGUFWriter, name: str, spec: ModelSpec) -> None:
    add_shape(writer, spec)
    writer.add_rope_dimension_count(spec.rotary_dim or spec.head_dim)
    if spec.sliding_window_tokens is not None:
        writer.add_sliding_window(spec.sliding_window_tokens)
    if spec.num_experts:
        writer.add_expert_count(spec.num_experts)
        writer.add_expert_used_count(spec.experts_per_token)
        if name != "llama":
            writer.add_expert_feed_forward_length(spec.intermediate_size)
    if spec.attention_softcap is not None:
        writer.add_attn_logit_softcapping(spec.attention_softcap)
    if spec.logit_softcap is not None:
        writer.add_final_logit_softcapping(spec.logit_softcap)
    if spec.local_rope_theta is not None:
        writer.add_float32("gemma3.rope.freq_base_swa", spec.local_rope_theta)
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)
    scaling = spec.rope_scaling
    if scaling is None:
        return
    if scaling.kind != "longrope":
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling.kind))
        writer.add_rope_scaling_factor(scaling.factor)
    if scaling.kind != "linear":
        writer.add_rope_scaling_orig_ctx_len(scaling.original_context_tokens)


def _as_converted(name: str, spec: ModelSpec, tensors: Tensors) -> dict[str, NDArray[np.float32]]:
    """By names that the package's tables know: experts stacked, q and k and norms as converted."""
    stacks: dict[str, dict[int, NDArray[np.float32]]] = {}
    plain: dict[str, NDArray[np.float32]] = {}
    for hf_name, tensor in tensors.items():
        values = tensor.numpy()
        if ".experts." in hf_name:
            before, after = hf_name.split(".experts.")
            number, leaf = after.split(".", 1)
            stacks.setdefault(f"{before}.experts.{leaf}", {})[int(number)] = values
            continue
        if name in ("llama", "smollm3") and ".q_proj." in hf_name:
            values = _permuted(values, spec.num_heads)
        if name in ("llama", "smollm3") and ".k_proj." in hf_name:
            values = _permuted(values, spec.num_kv_heads)
        if name.startswith("gemma") and hf_name.endswith("norm.weight"):
            values = values + np.float32(1)
        plain[_known(name, hf_name)] = values
    for stack, parts in stacks.items():
        plain[stack] = np.stack([parts[number] for number in range(spec.num_experts)])
    return plain


def _known(name: str, hf_name: str) -> str:
    if name == "gpt-oss":
        return hf_name.replace(".mlp.gate.", ".mlp.router.")
    return hf_name


def _permuted(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    halves = values.reshape(num_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
