"""The engine on a GPU gives what it gives on a CPU."""

import pytest
import torch

from node.engine.device import Device, pick_device
from node.engine.layouts.coded import random_coded
from node.engine.layouts.coded_tiles import coded_linear
from node.engine.measure import measure_device, measure_layer
from node.engine.runner import Runner
from plait.models.coded import CodeKind
from plait.types import DType, SamplingParams
from tests.unit.engine.kit import (
    KINDS,
    TinyModel,
    ids_item,
    make_runner,
    make_sequence,
    run_rows,
    tiny_model,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
PROMPTS = [[5, 9, 2], [7], [1, 2, 3, 4, 5, 6, 7, 8, 9], [11, 12]]


def exact() -> Device:
    torch.backends.cuda.matmul.allow_tf32 = False
    return pick_device("cuda", DType.FLOAT32)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_logits_are_transformers(kind: str) -> None:
    model = tiny_model(kind)
    runner = make_runner(model, model.spec.whole, device=exact())
    rows = run_rows(runner, [ids_item(make_sequence(model.spec.whole), 0, PROMPTS[2])])[0]
    with torch.inference_mode():
        logits = runner.stage.logits(rows).cpu()
    torch.testing.assert_close(logits, model.logits(PROMPTS[2]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
@pytest.mark.parametrize("gather_decodes", [True, False])
def test_a_batch_decodes_as_transformers(kind: str, gather_decodes: bool) -> None:
    model = tiny_model(kind)
    runner = make_runner(model, model.spec.whole, device=exact(), gather_decodes=gather_decodes)
    for text, prompt in zip(_generate(runner, 8), PROMPTS, strict=True):
        logits = model.logits(text[:-1])[len(prompt) - 1 :]
        assert text[len(prompt) :] == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_half_precision_stays_near(dtype: DType) -> None:
    model: TinyModel = tiny_model("qwen2")
    runner = make_runner(model, model.spec.whole, device=pick_device("cuda", dtype))
    rows = run_rows(runner, [ids_item(make_sequence(model.spec.whole), 0, PROMPTS[2])])[0]
    expected = model.hidden_states(PROMPTS[2])[-1]
    assert float((rows.float().cpu() - expected).norm() / expected.norm()) < 0.03


def test_a_gpu_is_measured() -> None:
    device = pick_device("cuda")
    report = measure_device(device, device.free_bytes())
    assert report.device_kind == "cuda" and report.compute_dtype is DType.BFLOAT16
    assert report.memory_bytes_per_s > 1e10 and report.flops_per_s > 1e11
    assert measure_layer(device, tiny_model("llama").spec).decode_layer_ms > 0


def _generate(runner: Runner, num_tokens: int) -> list[list[int]]:
    """Prompts and greedy ids of all of them, run side by side."""
    greedy = SamplingParams(temperature=0.0)
    span = runner.stage.spec.whole
    sequences = [make_sequence(span, name=f"r{i}", sampling=greedy) for i in range(len(PROMPTS))]
    texts = [list(prompt) for prompt in PROMPTS]
    done = [0] * len(PROMPTS)
    for _ in range(num_tokens):
        items = [
            ids_item(sequence, at, text[at:], sample=True)
            for sequence, text, at in zip(sequences, texts, done, strict=True)
        ]
        done = [len(text) for text in texts]
        for text, result in zip(texts, runner.run(items), strict=True):
            assert result.token_id is not None
            text.append(result.token_id)
    return texts


@pytest.mark.parametrize("kind", CodeKind)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_codes_are_multiplied_as_on_a_cpu(kind: CodeKind, dtype: DType) -> None:
    device, cpu = pick_device("cuda", dtype), pick_device("cpu", DType.FLOAT32)
    weights = [random_coded(kind, 48, 128, d.torch_device) for d in (device, cpu)]
    rows = torch.linspace(-1, 1, 3 * 128).view(3, 128)
    on_gpu, expected = (
        coded_linear(weight, None, tile_elements=16 * 128)(rows.to(d.torch_device, d.dtype))
        for weight, d in zip(weights, (device, cpu), strict=True)
    )
    atol = 1e-5 if dtype is DType.FLOAT32 else 0.02
    torch.testing.assert_close(on_gpu.float().cpu(), expected, atol=atol, rtol=atol)
