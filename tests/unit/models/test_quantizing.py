"""Writing a GGUF in another element type."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from plait.errors import ConfigError, ModelError, WeightsError
from plait.models import resolve
from plait.models.quantizing import KINDS, QuantizedFile, quantize_model

WIDTH = 64


def write_gguf(path: Path, *, bad: bool = False) -> None:
    """Two matrices, one with rows that no block divides, and a vector."""
    rng = np.random.default_rng(1)
    writer = GGUFWriter(path, arch="llama")
    writer.add_block_count(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "c"])
    matrix = rng.normal(0, 0.1, (8, WIDTH)).astype(np.float32)
    if bad:
        matrix[2, 3] = np.nan
    writer.add_tensor("token_embd.weight", matrix)
    writer.add_tensor("blk.0.attn_q.weight", matrix[:4] * 2)
    writer.add_tensor("blk.0.odd.weight", matrix[:, :40].copy())
    writer.add_tensor("output_norm.weight", matrix[0].copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantized(source: Path, out: Path, kind: str) -> QuantizedFile:
    return quantize_model(resolve(str(source)), out, kind)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_tensors_and_metadata_survive(kind: str, tmp_path: Path) -> None:
    source, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    write_gguf(source)
    heard: list[tuple[str, int, int]] = []
    written = quantize_model(
        resolve(str(source)), out, kind, progress=lambda *told: heard.append(told)
    )
    before = {t.name: t for t in GGUFReader(source).tensors}
    reader = GGUFReader(out)
    after = {t.name: t for t in reader.tensors}
    assert list(before) == list(after)
    assert after["blk.0.attn_q.weight"].tensor_type is KINDS[kind][0]
    assert after["output_norm.weight"].tensor_type is GGMLQuantizationType.F32
    for name, tensor in after.items():
        values = dequantize(tensor.data, tensor.tensor_type)
        largest = float(np.abs(before[name].data).max())
        np.testing.assert_allclose(values, before[name].data, atol=largest / 7)
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b", "c"]
    assert reader.fields["general.file_type"].contents() == KINDS[kind][1]
    assert written.sha256 == hashlib.sha256(out.read_bytes()).hexdigest()
    assert heard[-1][1] == heard[-1][2] > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.gguf", "out.gguf"]


def test_ends_stay_finer_in_files_of_four_bits(tmp_path: Path) -> None:
    write_gguf(tmp_path / "in.gguf")
    quantized(tmp_path / "in.gguf", tmp_path / "out.gguf", "q4_0")
    kinds = {t.name: t.tensor_type.name for t in GGUFReader(tmp_path / "out.gguf").tensors}
    assert kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.0.odd.weight"] == "F16"


def test_what_cannot_be_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    source = tmp_path / "in.gguf"
    write_gguf(source)
    with pytest.raises(ConfigError, match="choose one of f32, f16"):
        quantized(source, tmp_path / "out.gguf", "q3_k")
    with pytest.raises(ConfigError, match="is the source itself"):
        quantized(source, source, "q8_0")
    (tmp_path / "there.gguf").touch()
    with pytest.raises(ConfigError, match="exists already"):
        quantized(source, tmp_path / "there.gguf", "q8_0")
    with pytest.raises(ConfigError, match=r"ends with \.gguf"):
        quantized(source, tmp_path / "out.bin", "q8_0")
    with pytest.raises(ConfigError, match="there is no folder"):
        quantized(source, tmp_path / "no" / "out.gguf", "q8_0")
    (tmp_path / "text.gguf").write_text("not a model, but long enough to look at")
    with pytest.raises(ModelError, match="no GGUF"):
        quantized(tmp_path / "text.gguf", tmp_path / "out.gguf", "q8_0")
    write_gguf(tmp_path / "bad.gguf", bad=True)
    with pytest.raises(WeightsError, match=r"token_embd.weight has NaN"):
        quantized(tmp_path / "bad.gguf", tmp_path / "out.gguf", "q8_0")
    (tmp_path / "cut.gguf").write_bytes(source.read_bytes()[:-64])
    with pytest.raises(WeightsError, match="truncated"):
        quantized(tmp_path / "cut.gguf", tmp_path / "out.gguf", "q8_0")
    assert not list(tmp_path.glob("out.gguf*"))
