"""Every family out of a GGUF is the model that transformers runs."""

import json
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from plait.models import open_source, resolve
from plait.models.mxfp4 import dequantised
from plait.types import ModelSpec
from tests.unit.engine.families import read_back
from tests.unit.engine.gguf_files import NAMES, write_gguf
from tests.unit.engine.kit import (
    TinyModel,
    ids_item,
    make_runner,
    make_sequence,
    run_rows,
)
from tests.unit.models.tiny import values_of

NUM_LAYERS = 4
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8]


def read_gguf(path: Path) -> tuple[ModelSpec, dict[str, torch.Tensor]]:
    opened = open_source(resolve(str(path)))
    tensors = {n: torch.from_numpy(values_of(opened, n).copy()) for n in opened.tensor_names()}
    opened.close()
    return opened.spec, tensors


def logits(model: TinyModel) -> torch.Tensor:
    runner = make_runner(model, model.spec.whole)
    sequence = make_sequence(model.spec.whole)
    rows = [
        run_rows(runner, [ids_item(sequence, at, PROMPT[at : at + 7])])[0]
        for at in range(0, len(PROMPT), 7)
    ]
    with torch.inference_mode():
        return runner.stage.logits(torch.cat(rows))


@pytest.mark.parametrize("kind", NAMES)
def test_a_gguf_gives_transformers_logits(tmp_path: Path, kind: str) -> None:
    reference, expected, tensors = read_back(kind, NUM_LAYERS)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, kind, expected, tensors)
    spec, found = read_gguf(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(found[name], tensor, atol=2e-7, rtol=0)
    if kind.startswith("gemma"):  # a GGUF leaves the scale to its reader: that of published models
        assert spec.attention_scale == 16**-0.5
        spec = replace(spec, attention_scale=expected.attention_scale)
    assert spec.full_attention_layers == expected.full_attention_layers
    assert spec.unrotated_layers == expected.unrotated_layers
    model = TinyModel(reference, spec, found)
    torch.testing.assert_close(logits(model), model.logits(PROMPT), atol=1e-4, rtol=0)


def test_experts_in_mxfp4_come_out_of_a_gguf(tmp_path: Path) -> None:
    _, spec, tensors = read_back("gpt_oss", 2)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "gpt_oss", spec, tensors, experts=gguf.GGMLQuantizationType.MXFP4)
    _, found = read_gguf(path)
    for name, tensor in tensors.items():
        values = tensor.numpy()
        if ".experts." in name and name.endswith(".weight"):
            kind = gguf.GGMLQuantizationType.MXFP4
            values = gguf.dequantize(gguf.quantize(values, kind), kind)
        np.testing.assert_array_equal(found[name].numpy(), values)


def test_mxfp4_blocks_are_what_transformers_makes_of_them() -> None:
    rng = np.random.default_rng(5)
    blocks = rng.integers(0, 256, (2, 6, 3, 16), dtype=np.uint8)
    scales = rng.integers(110, 140, (2, 6, 3), dtype=np.uint8)
    packed = torch.from_numpy(blocks), torch.from_numpy(scales)
    expected = convert_moe_packed_tensors(*packed, dtype=torch.float32)  # (experts, in, out)
    for expert in range(2):
        ours = dequantised(blocks[expert], scales[expert])
        np.testing.assert_array_equal(ours, expected[expert].T.numpy())


def test_experts_in_mxfp4_come_out_of_safetensors(tmp_path: Path) -> None:
    """As OpenAI publishes them: blocks and scales, gate and up interleaved by row."""
    reference, spec, tensors = read_back("gpt_oss", 2)
    rng = np.random.default_rng(9)
    stored = {name.replace(".mlp.gate.", ".mlp.router."): t.numpy() for name, t in tensors.items()}
    stored = {name: t for name, t in stored.items() if ".experts." not in name}
    expected: dict[str, NDArray[np.float32]] = {}
    for layer in range(2):
        experts = f"model.layers.{layer}.mlp.experts"
        for kind, width, inner in (("gate_up", 64, 32), ("down", 32, 32)):
            blocks = rng.integers(0, 256, (4, width, inner // 32, 16), dtype=np.uint8)
            scales = rng.integers(120, 128, (4, width, inner // 32), dtype=np.uint8)
            bias = rng.standard_normal((4, width), dtype=np.float32)
            stored[f"{experts}.{kind}_proj_blocks"] = blocks
            stored[f"{experts}.{kind}_proj_scales"] = scales
            stored[f"{experts}.{kind}_proj_bias"] = bias
            packed = torch.from_numpy(blocks), torch.from_numpy(scales)
            whole = convert_moe_packed_tensors(*packed, dtype=torch.float32).mT.numpy()
            for expert in range(4):
                for part, step in (("gate", 0), ("up", 1)) if kind == "gate_up" else (("down", 0),):
                    rows = slice(step, None, 2) if kind == "gate_up" else slice(None)
                    name = f"{experts}.{expert}.{part}_proj"
                    expected[f"{name}.weight"] = whole[expert][rows]
                    expected[f"{name}.bias"] = bias[expert][rows]
    save_file(
        {name: np.ascontiguousarray(t) for name, t in stored.items()}, tmp_path / "m.safetensors"
    )
    config = {**reference.config.to_dict(), "quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    opened = open_source(resolve(str(tmp_path)))
    assert opened.tensor_names() == tensors.keys()
    assert replace(opened.spec, model_id=spec.model_id) == spec
    for name, values in expected.items():
        np.testing.assert_array_equal(values_of(opened, name), values)
    opened.close()
