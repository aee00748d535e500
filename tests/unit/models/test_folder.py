"""Folders of safetensors: byte ranges, shards, and every way a file can be wrong."""

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from plait.errors import ModelError, WeightsError
from plait.models import load_spec, open_source, resolve, span_tensor_names, tokenizer_source
from plait.types import Architecture, DType, LayerSpan
from tests.unit.models.tiny import TinyModel, assert_same_weights, tiny_model, write_folder

PLAIN = [Architecture.LLAMA, Architecture.QWEN2, Architecture.QWEN3, Architecture.MISTRAL]
"""Families of one plain layer; the others' files are those that transformers writes."""


@pytest.mark.parametrize("architecture", PLAIN)
@pytest.mark.parametrize("num_files", [1, 3])
def test_every_tensor_comes_back(
    tmp_path: Path, architecture: Architecture, num_files: int
) -> None:
    model = tiny_model(architecture, tie_embeddings=False)
    source = write_folder(tmp_path / "tiny", model, num_files=num_files)
    assert_same_weights(source, model)
    assert load_spec(source) == model.spec


def test_reads_headers_samples_and_the_tensors_asked_for_only(tmp_path: Path) -> None:
    model = tiny_model(num_layers=12)
    source = write_folder(tmp_path, model, num_files=4)
    opened = open_source(source)
    before = opened.read_bytes
    names = span_tensor_names(opened.spec, LayerSpan(4, 8))
    for name in names:
        opened.read(name)
    assert opened.read_bytes - before == sum(opened.stored_bytes(name) for name in names)
    num_header_bytes = sum(
        8 + int.from_bytes(path.read_bytes()[:8], "little")
        for path in tmp_path.glob("*.safetensors")
    )
    assert before <= num_header_bytes + 16 * 4 + 64 * len(model.tensors)


def test_half_precision_is_handed_on_as_stored(tmp_path: Path) -> None:
    model = tiny_model()
    write_folder(tmp_path, model)
    halves = {name: tensor.astype(np.float16) for name, tensor in model.tensors.items()}
    save_file(halves, tmp_path / "model.safetensors")
    opened = open_source(resolve(str(tmp_path)))
    data = opened.read("model.norm.weight")
    assert (data.dtype, bytes(data.buffer)) == (
        DType.FLOAT16,
        halves["model.norm.weight"].tobytes(),
    )


def test_a_bare_decoder_gets_its_prefix(tmp_path: Path) -> None:
    model = tiny_model()
    source = write_folder(tmp_path, model)
    bare = {name.removeprefix("model."): tensor for name, tensor in model.tensors.items()}
    save_file(bare, tmp_path / "model.safetensors")
    assert_same_weights(source, model)


def test_one_file_can_be_named(tmp_path: Path) -> None:
    model = tiny_model()
    write_folder(tmp_path, model)
    assert_same_weights(resolve(str(tmp_path / "model.safetensors")), model)


def test_digest_is_of_the_weights_not_of_the_place(tmp_path: Path) -> None:
    model = tiny_model()
    here, there = (open_source(write_folder(tmp_path / n, model)).digest for n in ("a", "b"))
    model.tensors["model.layers.0.mlp.up_proj.weight"] += 1
    assert here == there != open_source(write_folder(tmp_path / "c", model)).digest


class TestDamage:
    """Each says what is wrong, with file and tensor."""

    def test_truncated(self, tmp_path: Path) -> None:
        source = write_folder(tmp_path, tiny_model())
        path = tmp_path / "model.safetensors"
        for keep in (path.stat().st_size - 1, 500, 100, 8, 3, 0):
            path.write_bytes(path.read_bytes()[:keep])
            with pytest.raises(WeightsError, match=r"model\.safetensors is truncated") as caught:
                open_source(source)
            assert caught.value.code == "weights_truncated"

    def test_trailing_bytes(self, tmp_path: Path) -> None:
        source = write_folder(tmp_path, tiny_model())
        with (tmp_path / "model.safetensors").open("ab") as file:
            file.write(b"more")
        with pytest.raises(WeightsError, match="4 bytes follow"):
            open_source(source)

    def test_a_shape_that_disagrees(self, tmp_path: Path) -> None:
        model = tiny_model()
        name = "model.layers.0.self_attn.q_proj.weight"
        model.tensors[name] = np.zeros((8, 8), dtype=np.float32)
        with pytest.raises(WeightsError, match=rf"safetensors: tensor {name} has shape \(8, 8\)"):
            open_source(write_folder(tmp_path, model))

    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("data_offsets", [0, 12], "cannot have 12 bytes"),
            ("data_offsets", [12, 0], "impossible offsets"),
            ("data_offsets", [-4, 0], "malformed"),
            ("data_offsets", [0], "impossible offsets"),
            ("shape", [2, -2], "malformed"),
            ("shape", "4", "malformed"),
            ("dtype", None, "malformed"),
        ],
    )
    def test_nonsense_in_the_header(
        self, tmp_path: Path, key: str, value: object, said: str
    ) -> None:
        source = write_folder(tmp_path, tiny_model())
        entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16], key: value}
        _write_raw(tmp_path / "model.safetensors", {"x": entry}, bytes(16))
        with pytest.raises(WeightsError, match=said):
            open_source(source)

    def test_overlapping_tensors(self, tmp_path: Path) -> None:
        source = write_folder(tmp_path, tiny_model())
        entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
        _write_raw(tmp_path / "model.safetensors", {"x": entry, "y": entry}, bytes(16))
        with pytest.raises(WeightsError, match="overlaps"):
            open_source(source)

    @pytest.mark.parametrize("raw", [b"[1]", b"{nope", b"\xff\xfe"])
    def test_a_header_that_is_no_object(self, tmp_path: Path, raw: bytes) -> None:
        source = write_folder(tmp_path, tiny_model())
        (tmp_path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw)
        with pytest.raises(WeightsError, match=r"model\.safetensors"):
            open_source(source)

    def test_integers_are_refused_when_read(self, tmp_path: Path) -> None:
        model = tiny_model()
        source = write_folder(tmp_path, model)
        stored = {name: tensor.astype(np.int8) for name, tensor in model.tensors.items()}
        save_file(stored, tmp_path / "model.safetensors")
        opened = open_source(source)
        with pytest.raises(WeightsError, match="stored as I8"):
            opened.read("model.norm.weight")

    def test_infinity(self, tmp_path: Path) -> None:
        model = tiny_model()
        model.tensors["model.norm.weight"][5] = np.inf
        opened = open_source(write_folder(tmp_path, model))
        with pytest.raises(WeightsError, match=r"model\.norm\.weight has NaN or infinite"):
            opened.read("model.norm.weight")

    def test_a_missing_shard(self, tmp_path: Path) -> None:
        source = write_folder(tmp_path, tiny_model(), num_files=3)
        (tmp_path / "model-00002-of-00003.safetensors").unlink()
        with pytest.raises(WeightsError, match=r"lacks 1 of 3 files.*00002-of-00003"):
            open_source(source)

    def test_an_index_that_points_into_the_wrong_shard(self, tmp_path: Path) -> None:
        source = write_folder(tmp_path, tiny_model(), num_files=2)
        index = tmp_path / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        weight_map = content["weight_map"]
        first = next(iter(weight_map))
        weight_map[first] = "model-00002-of-00002.safetensors"
        index.write_text(json.dumps(content))
        with pytest.raises(WeightsError, match=f"puts tensor {first} into .* does not have it"):
            open_source(source)

    @pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "a\\b", ".", 7])
    def test_an_index_that_leaves_the_folder(self, tmp_path: Path, name: object) -> None:
        source = write_folder(tmp_path, tiny_model(), num_files=2)
        index = {"weight_map": {"model.norm.weight": name}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(WeightsError, match="no file name"):
            open_source(source)


class TestPickles:
    """Found by content, never loaded."""

    @pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
    @pytest.mark.parametrize("protocol", [2, 4, 5])
    def test_renamed(self, tmp_path: Path, name: str, protocol: int) -> None:
        write_folder(tmp_path, tiny_model())
        path = tmp_path / name
        path.write_bytes(pickle.dumps({"weights": [1.0] * 99}, protocol))
        with pytest.raises(WeightsError, match="Python pickle") as caught:
            open_source(resolve(str(path)))
        assert caught.value.code == "weights_pickle"

    def test_torchs_zip_renamed(self, tmp_path: Path) -> None:
        source = write_folder(tmp_path, tiny_model())
        with zipfile.ZipFile(tmp_path / "model.safetensors", "w") as archive:
            archive.writestr("archive/data.pkl", b"x" * 50)
        with pytest.raises(WeightsError, match="Python pickle"):
            open_source(source)

    def test_nothing_else_in_the_folder(self, tmp_path: Path) -> None:
        source = write_folder(tmp_path, tiny_model())
        (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
        with pytest.raises(WeightsError, match=r"pytorch_model\.bin is refused"):
            open_source(source)

    def test_a_header_length_that_begins_like_a_pickle_is_none(self, tmp_path: Path) -> None:
        model = tiny_model(num_layers=1)
        source = write_folder(tmp_path, model)
        path = tmp_path / "model.safetensors"
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        padded = content[8 : 8 + size].ljust(0x0580)
        path.write_bytes(len(padded).to_bytes(8, "little") + padded + content[8 + size :])
        assert path.read_bytes()[:2] == b"\x80\x05"
        assert_same_weights(source, model)


def test_an_empty_folder_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no weights"):
        open_source(resolve(str(tmp_path)))
    source = write_folder(tmp_path / "x", tiny_model())
    (tmp_path / "x" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        open_source(source)


def test_what_is_neither(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello, this is text")
    with pytest.raises(ModelError, match="neither a GGUF nor a safetensors"):
        open_source(resolve(str(path)))


def test_tokenizer_of_a_folder(tmp_path: Path) -> None:
    source = write_folder(tmp_path, tiny_model())
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        tokenizer_source(source)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert tokenizer_source(source).chat_template is None
    templates = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert tokenizer_source(source).chat_template == "D"
    (tmp_path / "chat_template.jinja").write_text("J")
    files = tokenizer_source(source)
    assert (files.folder, files.gguf_file, files.chat_template) == (tmp_path, None, "J")


def _write_raw(path: Path, header: dict[str, object], data: bytes) -> None:
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


def test_tiny_model_is_what_it_says() -> None:
    model = tiny_model()
    assert isinstance(model, TinyModel)
    assert set(span_tensor_names(model.spec, model.spec.whole)) == set(model.tensors)
