"""Tiny models quantised as GPTQ, AWQ and FP8 files have them, and, by loops, what they mean."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from plait.models import resolve
from plait.types import ModelSource
from tests.unit.models.tiny import TinyModel, config_json

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Floats = NDArray[np.float32]
Stored = dict[str, torch.Tensor]


@dataclass
class Quantised:
    """`config` is the section of config.json; `meant` has the model's weights as they are read."""

    config: dict[str, object]
    stored: Stored = field(default_factory=dict)
    meant: dict[str, Floats] = field(default_factory=dict)


def is_linear(name: str) -> bool:
    return "_proj.weight" in name


def gptq(
    model: TinyModel, group: int, *, symmetric: bool, act_order: bool = False, version: int = 1
) -> Quantised:
    """`group` -1: one for all columns."""
    section: dict[str, object] = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": group,
        "sym": symmetric,
        "desc_act": act_order,
        "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
    }
    made = Quantised(section)
    rng = np.random.default_rng(3)
    for name, tensor in model.tensors.items():
        if not is_linear(name):
            _add_plain(made, name, tensor)
            continue
        out, width = tensor.shape
        size = width if group == -1 else group
        codes, zeros, scales = _random(rng, out, width, -(-width // size), symmetric=symmetric)
        groups = np.arange(width) // size
        if act_order:
            rng.shuffle(groups)
        words = np.zeros((width // 8, out), np.int64)
        for i in range(width):
            words[i // 8] |= codes[:, i] << 4 * (i % 8)
        zero_words = np.zeros((zeros.shape[0], out // 8), np.int64)
        for o in range(out):
            zero_words[:, o // 8] |= (zeros[:, o] - (1 if version == 1 else 0)) << 4 * (o % 8)
        base = name.removesuffix(".weight")
        made.stored[f"{base}.qweight"] = _int32(words)
        made.stored[f"{base}.qzeros"] = _int32(zero_words)
        made.stored[f"{base}.scales"] = torch.from_numpy(scales)
        made.stored[f"{base}.g_idx"] = torch.from_numpy(groups.astype(np.int32))
        made.meant[name] = _meant(codes, zeros, scales, groups)
    return made


def awq(model: TinyModel, group: int, *, symmetric: bool) -> Quantised:
    section: dict[str, object] = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "version": "gemm",
        "zero_point": not symmetric,
    }
    made = Quantised(section)
    rng = np.random.default_rng(4)
    for name, tensor in model.tensors.items():
        if not is_linear(name):
            _add_plain(made, name, tensor)
            continue
        out, width = tensor.shape
        codes, zeros, scales = _random(rng, out, width, width // group, symmetric=symmetric)
        words = np.zeros((width, out // 8), np.int64)
        zero_words = np.zeros((width // group, out // 8), np.int64)
        for word in range(out // 8):
            for place, which in enumerate(AWQ_ORDER):
                words[:, word] |= codes[8 * word + which] << 4 * place
                zero_words[:, word] |= zeros[:, 8 * word + which] << 4 * place
        base = name.removesuffix(".weight")
        made.stored[f"{base}.qweight"] = _int32(words)
        made.stored[f"{base}.qzeros"] = _int32(zero_words)
        made.stored[f"{base}.scales"] = torch.from_numpy(scales)
        made.meant[name] = _meant(codes, zeros, scales, np.arange(width) // group)
    return made


def fp8(model: TinyModel, way: str) -> Quantised:
    """`way`: tensor, channel or block (of 32 by 48, which does not divide all widths)."""
    rows, columns = 32, 48
    config: dict[str, object] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    if way == "block":
        config["weight_block_size"] = [rows, columns]
    if way == "channel":
        weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
        config = {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {"group_0": {"weights": weights}},
        }
    made = Quantised(config)
    rng = np.random.default_rng(5)
    for name, tensor in model.tensors.items():
        if not is_linear(name):
            _add_plain(made, name, tensor)
            continue
        out, width = tensor.shape
        codes = torch.from_numpy(rng.normal(0, 10, (out, width)).astype(np.float32))
        stored = codes.to(torch.float8_e4m3fn)
        shapes = {
            "tensor": (),
            "channel": (out, 1),
            "block": (-(-out // rows), -(-width // columns)),
        }
        scale = np.asarray(rng.uniform(0.005, 0.02, shapes[way]), dtype=np.float32)
        base = name.removesuffix(".weight")
        made.stored[name] = stored
        leaf = "weight_scale_inv" if way == "block" else "weight_scale"
        made.stored[f"{base}.{leaf}"] = torch.from_numpy(scale)
        values = stored.float().numpy()
        if way == "block":
            meant = np.empty_like(values)
            for o in range(out):
                for i in range(width):
                    meant[o, i] = values[o, i] * scale[o // rows, i // columns]
            made.meant[name] = meant
        else:
            made.meant[name] = values * scale
    return made


def write_quantised(folder: Path, model: TinyModel, made: Quantised) -> ModelSource:
    """A folder in Hugging Face's form."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**config_json(model.spec), "quantization_config": made.config}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({n: t.contiguous() for n, t in made.stored.items()}, folder / "model.safetensors")
    return resolve(str(folder))


def as_meant(model: TinyModel, made: Quantised) -> TinyModel:
    """The model with the weights that the file means, in float32."""
    return replace(model, tensors=made.meant)


def _add_plain(made: Quantised, name: str, tensor: Floats) -> None:
    half = tensor.astype(np.float16)
    made.stored[name] = torch.from_numpy(half)
    made.meant[name] = half.astype(np.float32)


def _random(
    rng: np.random.Generator, out: int, width: int, num_groups: int, *, symmetric: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float16]]:
    """codes (out, width), zero points and scales (groups, out)."""
    codes = rng.integers(0, 16, (out, width))
    zeros = np.full((num_groups, out), 8) if symmetric else rng.integers(1, 16, (num_groups, out))
    scales = rng.uniform(0.01, 0.05, (num_groups, out)).astype(np.float16)
    return codes, zeros, scales


def _meant(
    codes: NDArray[np.int64],
    zeros: NDArray[np.int64],
    scales: NDArray[np.float16],
    groups: NDArray[np.int64],
) -> Floats:
    meant = np.empty(codes.shape, np.float32)
    for i, group in enumerate(groups):
        meant[:, i] = (codes[:, i] - zeros[group]) * scales[group].astype(np.float32)
    return meant


def _int32(words: NDArray[np.int64]) -> torch.Tensor:
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))
