"""GPTQ, AWQ and FP8 in safetensors: what they mean, only their own bytes, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from plait.errors import ModelError, WeightsError
from plait.models import choose_format, load_spec, open_source, span_tensor_names
from plait.models.formats import main_type
from plait.models.source import read_coded
from plait.types import LayerSpan, WeightFormat
from tests.unit.models.quantised import (
    Quantised,
    as_meant,
    awq,
    fp8,
    gptq,
    is_linear,
    write_quantised,
)
from tests.unit.models.tiny import TinyModel, assert_same_weights, tiny_model

WAYS: dict[str, Callable[[TinyModel], Quantised]] = {
    "gptq-sym": lambda m: gptq(m, 32, symmetric=True),
    "gptq-asym": lambda m: gptq(m, 16, symmetric=False),
    "gptq-one-group": lambda m: gptq(m, -1, symmetric=False),
    "gptq-short-group": lambda m: gptq(m, 40, symmetric=False),
    "gptq-act-order": lambda m: gptq(m, 32, symmetric=False, act_order=True),
    "gptq-v2": lambda m: gptq(m, 32, symmetric=False, version=2),
    "awq": lambda m: awq(m, 32, symmetric=False),
    "awq-sym": lambda m: awq(m, 16, symmetric=True),
    "fp8-tensor": lambda m: fp8(m, "tensor"),
    "fp8-channel": lambda m: fp8(m, "channel"),
    "fp8-block": lambda m: fp8(m, "block"),
}


@pytest.mark.parametrize("way", WAYS)
def test_weights_are_what_the_format_means(way: str, tmp_path: Path) -> None:
    model = tiny_model()
    made = WAYS[way](model)
    source = write_quantised(tmp_path, model, made)
    assert_same_weights(source, as_meant(model, made), atol=1e-6)
    opened = open_source(source)
    for name in model.tensors:
        coded = read_coded(opened, name)
        assert (coded is not None) is is_linear(name)
    main = way.partition("-")[0].upper()
    assert main_type(opened) == main
    assert choose_format("stored", opened) is WeightFormat.STORED
    assert choose_format("auto", opened) is WeightFormat.FP16
    opened.close()


@pytest.mark.parametrize("way", ["gptq-act-order", "awq", "fp8-block"])
def test_a_span_reads_its_own_bytes_only(way: str, tmp_path: Path) -> None:
    model = tiny_model(num_layers=6)
    opened = open_source(write_quantised(tmp_path, model, WAYS[way](model)))
    before = opened.read_bytes
    names = span_tensor_names(opened.spec, LayerSpan(2, 4))
    for name in names:
        if read_coded(opened, name) is None:
            opened.read(name)
    assert opened.read_bytes == before + sum(opened.stored_bytes(name) for name in names)
    assert opened.read_bytes - before <= 0.4 * opened.total_bytes
    opened.close()


def test_words_of_the_other_type_decide_for_plain_files(tmp_path: Path) -> None:
    model = tiny_model()
    made = Quantised({})
    for name, tensor in model.tensors.items():
        made.stored[name] = torch.from_numpy(tensor).bfloat16()
    folder = tmp_path / "bf16"
    source = write_quantised(folder, model, made)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    opened = open_source(source)
    assert choose_format("auto", opened) is WeightFormat.FP16
    opened.close()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes'"),
        ({"quant_method": "gptq", "bits": 3}, "gptq of 3 bits"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "'marlin'"),
        ({"quant_method": "awq", "bits": 8}, "awq of 8 bits"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "'gemv'"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fp8 as e5m2"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "blocks of"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "'pack-quantized'"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "other weights in g",
        ),
    ],
)
def test_other_ways_are_refused_with_those_that_work(
    section: dict[str, object], said: str, tmp_path: Path
) -> None:
    model = tiny_model()
    source = write_quantised(tmp_path, model, Quantised(section))
    with pytest.raises(ModelError, match=rf"{said}.*it reads gptq \(4 bits\), awq") as caught:
        load_spec(source)
    assert caught.value.code == "model_unsupported"


def broken(made: Quantised, leaf: str, tensor: torch.Tensor | None) -> None:
    name = next(name for name in made.stored if name.endswith(f"layers.1.mlp.up_proj.{leaf}"))
    if tensor is None:
        del made.stored[name]
    else:
        made.stored[name] = tensor


@pytest.mark.parametrize(
    ("way", "leaf", "tensor", "said", "code"),
    [
        ("gptq-sym", "scales", None, "lacks|no tensor", "weights_incomplete"),
        ("gptq-sym", "scales", torch.ones(3, 96), r"scales \(3, 96\)", "weights_disagree"),
        ("awq", "qzeros", torch.ones(2, 3).int(), r"qzeros \(2, 3\)", "weights_disagree"),
        ("awq", "qweight", torch.ones(64, 12), "qweight is F32", "weights_disagree"),
        ("gptq-sym", "g_idx", torch.zeros(64).int(), "g_idx", "weights_disagree"),
        ("fp8-channel", "weight_scale", torch.ones(5, 1), r"scales \(5, 1\)", "weights_disagree"),
        ("fp8-channel", "weight_scale", None, "no tensor", "weights_incomplete"),
        (
            "gptq-sym",
            "scales",
            torch.full((2, 96), torch.inf).half(),
            "up_proj",
            "weights_not_finite",
        ),
        (
            "fp8-tensor",
            "weight",
            torch.full((96, 64), torch.nan).to(torch.float8_e4m3fn),
            "up_proj",
            "weights_not_finite",
        ),
    ],
)
def test_damage_is_refused_and_the_tensor_named(
    way: str, leaf: str, tensor: torch.Tensor | None, said: str, code: str, tmp_path: Path
) -> None:
    model = tiny_model()
    made = WAYS[way](model)
    broken(made, leaf, tensor)
    source = write_quantised(tmp_path, model, made)
    with pytest.raises(WeightsError, match=said) as caught:
        opened = open_source(source)
        opened.read("model.layers.1.mlp.up_proj.weight")
    assert caught.value.code == code
    assert "up_proj" in caught.value.message


def test_codes_and_dense_reads_agree(tmp_path: Path) -> None:
    model = tiny_model()
    opened = open_source(write_quantised(tmp_path, model, WAYS["gptq-act-order"](model)))
    name = "model.layers.0.mlp.down_proj.weight"
    coded = read_coded(opened, name)
    assert coded is not None and coded.columns is not None
    data = opened.read(name)
    values = np.frombuffer(data.buffer, "<f4").reshape(data.shape)
    np.testing.assert_array_equal(coded.dense(), values)
    opened.close()
