"""A rank reads its own part of files, bit for bit what it would cut out of the whole."""

from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Quant

from node.engine.parallel.rank_source import RankSource, cut_out
from node.engine.parallel.split import Split, cut_of
from plait.models.bytestore import FileStore
from plait.models.folder import open_folder
from plait.models.gguf_source import GgufSource
from plait.models.source import TensorSource
from plait.models.tensors import EMBEDDING, HEAD, span_tensor_names
from plait.types import ModelId, ModelSpec
from tests.kit.tiny_model import write_tiny_model
from tests.unit.engine.families import read_back
from tests.unit.engine.gguf_files import write_gguf

Opens = Callable[[], TensorSource]


def gguf(folder: Path, kind: str, experts: Quant = Quant.F32) -> Opens:
    _, spec, tensors = read_back(kind, 2)
    path = folder / f"{kind}.gguf"
    write_gguf(path, kind, spec, tensors, experts=experts)
    return lambda: GgufSource(FileStore(path), ModelId(kind))


def safetensors(folder: Path) -> Opens:
    write_tiny_model(folder / "tiny")
    return lambda: open_folder(folder / "tiny", ModelId("tiny"))


def layer_names(spec: ModelSpec) -> list[str]:
    ends = (EMBEDDING, HEAD)
    return [name for name in span_tensor_names(spec, spec.whole) if name not in ends]


@pytest.mark.parametrize("kind", ["safetensors", "smollm3", "phi3", "gpt_oss", "mixtral-q8"])
def test_parts_are_cut_where_they_lie(tmp_path: Path, kind: str) -> None:
    if kind == "safetensors":
        opens = safetensors(tmp_path)
    elif kind == "mixtral-q8":
        opens = gguf(tmp_path, "mixtral", Quant.Q8_0)
    else:
        opens = gguf(tmp_path, kind)
    whole = opens()
    spec = whole.spec
    for rank in range(2):
        split = Split(rank, 2)
        part = RankSource(whole, spec, split)
        for name in span_tensor_names(spec, spec.whole):
            cut = cut_of(spec, split, name)
            if cut.is_whole:
                continue
            expected, found = cut_out(whole.read(name), cut), part.read(name)
            assert found.shape == expected.shape, name
            assert bytes(found.buffer) == bytes(expected.buffer), name
    whole.close()


def test_a_rank_reads_half_of_the_layers_bytes(tmp_path: Path) -> None:
    opens = safetensors(tmp_path)
    source = opens()
    spec = source.spec
    names = layer_names(spec)
    norms = sum(source.stored_bytes(name) for name in names if "norm" in name)
    products = sum(source.stored_bytes(name) for name in names) - norms
    for rank in range(2):
        opened = opens()
        before = opened.read_bytes
        part = RankSource(opened, spec, Split(rank, 2))
        for name in names:
            part.read(name)
        assert opened.read_bytes - before == norms + products // 2
        opened.close()
    source.close()
