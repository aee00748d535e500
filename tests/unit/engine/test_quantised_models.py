"""Models of GPTQ, AWQ and FP8 files answer as transformers does with what they mean."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from plait.models import in_format, load_spec, open_source, whole_tensor_names
from plait.types import WeightFormat
from tests.unit.engine.opened_model import chain_logits, load, open_dense
from tests.unit.models.quantised import Quantised, awq, fp8, gptq, write_quantised
from tests.unit.models.tiny import TinyModel, config_json, tiny_model

IDS = [5, 9, 80, 3, 17, 44]
WAYS: dict[str, Callable[[TinyModel], Quantised]] = {
    "gptq": lambda m: gptq(m, 32, symmetric=True),
    "gptq-act-order": lambda m: gptq(m, 32, symmetric=False, act_order=True),
    "awq": lambda m: awq(m, 32, symmetric=False),
    "fp8-channel": lambda m: fp8(m, "channel"),
    "fp8-block": lambda m: fp8(m, "block"),
}


@torch.inference_mode()
def reference_logits(model: TinyModel, made: Quantised) -> torch.Tensor:
    config = LlamaConfig.from_dict(config_json(model.spec))
    reference = LlamaForCausalLM(config)
    reference.train(mode=False)
    state = {name: torch.from_numpy(values) for name, values in made.meant.items()}
    reference.load_state_dict(state, strict=False)
    reference.tie_weights()
    logits: torch.Tensor = reference(input_ids=torch.tensor([IDS])).logits[0]
    return logits


@pytest.mark.parametrize("way", WAYS)
def test_a_chain_answers_as_transformers_with_dequantised_weights(way: str, tmp_path: Path) -> None:
    model = tiny_model()
    made = WAYS[way](model)
    source = write_quantised(tmp_path, model, made)
    expected = reference_logits(model, made)
    opened = open_source(source)
    native = load_spec(source)
    kept = in_format(native, "stored", opened)
    assert kept.weight_format is WeightFormat.STORED
    for spec in (native, kept):
        for cuts in ((), (1,), (1, 2)):
            logits = chain_logits(source, spec, IDS, cuts)
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    opened.close()


@pytest.mark.parametrize("way", ["gptq", "awq", "fp8-channel"])
def test_weights_stay_in_the_bytes_of_their_file(way: str, tmp_path: Path) -> None:
    model = tiny_model()
    source = write_quantised(tmp_path, model, WAYS[way](model))
    opened = open_source(source)
    spec = in_format(load_spec(source), "stored", opened)
    stage = load(source, spec, spec.whole)
    assert stage.embedding is not None
    held = stage.weight_bytes - stage.embedding.weight_bytes
    names = whole_tensor_names(spec, spec.whole)
    assert held <= 1.1 * sum(opened.stored_bytes(name) for name in names)
    opened.close()


def test_float32_of_codes_that_have_no_kernel_is_dense(tmp_path: Path) -> None:
    model = tiny_model()
    source = write_quantised(tmp_path, model, WAYS["fp8-channel"](model))
    spec = load_spec(source)
    held, dense = load(source, spec, spec.whole), load(source, spec, spec.whole, open_dense)
    assert held.weight_bytes == dense.weight_bytes
    assert (held.layout, held.rows_min) == (dense.layout, dense.rows_min)
    wide = chain_logits(source, spec, IDS, (), open_dense)
    assert torch.equal(chain_logits(source, spec, IDS), wide)
