"""GGUFs: names, layouts, quantisations, and every way a file can be wrong."""

import struct
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from plait.errors import ModelError, WeightsError
from plait.models import load_spec, open_source, resolve, span_tensor_names, tokenizer_source
from plait.models.gguf_source import GgufSource
from plait.models.llama3_rope import llama3_factors
from plait.models.tokenizer import write_tokenizer_gguf
from plait.types import Architecture, LayerSpan, ModelSource, RopeScaling
from tests.unit.models.tiny import (
    TinyModel,
    assert_same_weights,
    gguf_name,
    tiny_model,
    values_of,
    write_gguf,
)

Q = gguf.GGMLQuantizationType
YARN = {"llama.rope.scaling.type": "yarn"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


@pytest.mark.parametrize(
    "architecture", [Architecture.LLAMA, Architecture.QWEN2, Architecture.QWEN3]
)
@pytest.mark.parametrize("is_tied", [True, False])
def test_every_tensor_comes_back_in_hugging_faces_layout(
    path: Path, architecture: Architecture, is_tied: bool
) -> None:
    model = tiny_model(architecture, tie_embeddings=is_tied, head_dim=32)
    source = write_gguf(path, model)
    assert_same_weights(source, model)
    assert load_spec(source, model_id=model.spec.model_id) == replace(
        model.spec, norm_eps=float(np.float32(1e-5))
    )


def test_biases_of_a_llama_are_permuted_like_their_weights(path: Path) -> None:
    model = tiny_model(llama_biases=True)
    assert_same_weights(write_gguf(path, model), model)


@pytest.mark.parametrize(
    ("quant", "atol"), [(Q.F16, 1e-3), (Q.BF16, 1e-2), (Q.Q8_0, 1e-2), (Q.Q4_1, 0.1), (Q.Q5_0, 0.1)]
)
def test_quantised_tensors_are_dequantised_after_the_permutation(
    path: Path, quant: gguf.GGMLQuantizationType, atol: float
) -> None:
    model = tiny_model()
    assert_same_weights(write_gguf(path, model, quant=quant), model, atol=atol)


def test_reads_only_the_header_and_the_tensors_asked_for(path: Path) -> None:
    model = tiny_model(num_layers=30, vocab_size=20_000)
    source = write_gguf(path, model)
    opened = open_source(source)
    header_bytes = opened.read_bytes
    names = span_tensor_names(opened.spec, LayerSpan(10, 20))
    for name in names:
        opened.read(name)
    assert opened.read_bytes == header_bytes + sum(opened.stored_bytes(n) for n in names)
    assert header_bytes < 300 * 1024
    assert opened.read_bytes <= 0.45 * path.stat().st_size


def test_a_vocabulary_is_walked_not_built(path: Path) -> None:
    opened = open_source(write_gguf(path, tiny_model(), num_tokens=5000))
    assert isinstance(opened, GgufSource)
    assert "tokenizer.ggml.tokens" not in opened.header.metadata
    assert opened.header.metadata["tokenizer.chat_template"] == "{{ messages }}"


def test_the_tokenizer_part_alone_is_a_gguf_that_the_library_reads(
    path: Path, tmp_path: Path
) -> None:
    source = write_gguf(path, tiny_model(), num_tokens=100)
    files = tokenizer_source(source)
    assert (files.folder, files.gguf_file) == (path.parent, path.name)
    assert files.chat_template == "{{ messages }}"
    opened = open_source(source)
    assert isinstance(opened, GgufSource)
    alone = tmp_path / "tokenizer.gguf"
    write_tokenizer_gguf(opened.header, alone)
    reader = gguf.GGUFReader(alone)
    assert len(reader.fields["tokenizer.ggml.tokens"].data) == 100
    assert reader.tensors == []


def test_llama3_scaling_is_recovered_from_its_factors(path: Path) -> None:
    model = tiny_model()
    scaling = RopeScaling(
        kind="llama3",
        factor=32.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_context_tokens=8192,
    )
    factors = llama3_factors(model.spec.head_dim, model.spec.rope_theta, scaling)
    source = write_gguf(path, model, extra={"rope_freqs.weight": factors.astype(np.float32)})
    assert load_spec(source).rope_scaling == scaling


def test_rope_factors_of_another_kind_are_refused(path: Path) -> None:
    factors = np.linspace(1, 9, 8, dtype=np.float32)
    source = write_gguf(path, tiny_model(), extra={"rope_freqs.weight": factors})
    with pytest.raises(ModelError, match="rope factors"):
        load_spec(source)


def test_an_unknown_architecture_is_refused_with_the_known_ones(path: Path) -> None:
    source = write_gguf(path, tiny_model(), architecture="mamba")
    with pytest.raises(ModelError, match=r"mamba.*llama, qwen2, qwen3, phi3, gemma2") as caught:
        open_source(source)
    assert caught.value.code == "model_unsupported"


def test_a_tensor_that_the_family_does_not_have_is_refused(path: Path) -> None:
    extra = {"blk.0.ffn_gate_exps.weight": np.zeros((4, 32), dtype=np.float32)}
    with pytest.raises(ModelError, match="ffn_gate_exps"):
        open_source(write_gguf(path, tiny_model(), extra=extra))


@pytest.mark.parametrize(
    ("key", "count", "said"),
    [
        ("split.count", 3, "llama-gguf-split --merge"),
        ("llama.rope.dimension_count", 8, "rope.dimension_count differs"),
    ],
)
def test_variants_that_are_refused(path: Path, key: str, count: int, said: str) -> None:
    source = write_gguf(path, tiny_model(), counts={key: count})
    with pytest.raises(ModelError, match=said) as caught:
        open_source(source)
    assert caught.value.code == "model_unsupported"


def test_experts_in_a_family_without_them_are_refused(path: Path) -> None:
    source = write_gguf(path, tiny_model(Architecture.QWEN2), counts={"qwen2.expert_count": 8})
    with pytest.raises(ModelError, match="mixture of experts of qwen2"):
        open_source(source)


def test_a_choice_of_more_experts_than_there_are_is_refused(path: Path) -> None:
    counts = {"llama.expert_count": 8, "llama.expert_used_count": 9}
    with pytest.raises(ModelError, match="9 of 8 experts"):
        load_spec(write_gguf(path, tiny_model(), counts=counts))


def test_yarn(path: Path) -> None:
    source = write_gguf(path, tiny_model(), texts=YARN, counts={"llama.rope.scaling.factor": 4})
    scaling = RopeScaling(kind="yarn", factor=4.0, original_context_tokens=128)
    assert load_spec(source).rope_scaling == scaling


@pytest.mark.parametrize("leaf", ["attn_factor", "yarn_ext_factor"])
def test_yarn_with_settings_that_would_be_ignored_is_refused(path: Path, leaf: str) -> None:
    counts = {"llama.rope.scaling.factor": 4, f"llama.rope.scaling.{leaf}": 2}
    with pytest.raises(ModelError, match=leaf):
        load_spec(write_gguf(path, tiny_model(), texts=YARN, counts=counts))


def test_digest_tells_two_fine_tunings_apart(tmp_path: Path) -> None:
    model = tiny_model()
    other = TinyModel(
        spec=model.spec,
        tensors={
            **model.tensors,
            "model.layers.1.mlp.up_proj.weight": model.tensors["model.layers.1.mlp.up_proj.weight"]
            + 1,
        },
    )
    digests = [
        open_source(write_gguf(tmp_path / f"{n}.gguf", m)).digest
        for n, m in enumerate((model, model, other))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_other_weights_than_the_networks_are_refused(path: Path) -> None:
    source = write_gguf(path, tiny_model())
    digest = open_source(source).digest
    open_source(replace(source, digest=digest))
    with pytest.raises(WeightsError, match="not those the network serves") as caught:
        open_source(replace(source, digest="0" * 64))
    assert caught.value.code == "weights_mismatch"


class TestDamage:
    """Each says what is wrong, with file and tensor."""

    def test_truncated_data(self, path: Path) -> None:
        source = write_gguf(path, tiny_model())
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(WeightsError, match=r"tiny\.gguf is truncated: tensor") as caught:
            open_source(source)
        assert caught.value.code == "weights_truncated"

    @pytest.mark.parametrize("keep", [0, 3, 11, 23, 40, 200, 1500])
    def test_truncated_header(self, path: Path, keep: int) -> None:
        source = write_gguf(path, tiny_model())
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(WeightsError, match=r"tiny\.gguf"):
            open_source(source)

    def test_a_shape_that_disagrees_with_the_configuration(self, path: Path) -> None:
        model = tiny_model()
        name = "model.layers.2.mlp.down_proj.weight"
        wrong = TinyModel(
            spec=model.spec,
            tensors={**model.tensors, name: np.zeros((64, 64), dtype=np.float32)},
        )
        with pytest.raises(WeightsError, match=rf"tiny\.gguf: tensor {name} has shape") as caught:
            open_source(write_gguf(path, wrong))
        assert caught.value.code == "weights_disagree"

    def test_a_tensor_that_is_there_twice(self, path: Path) -> None:
        source = write_gguf(path, tiny_model())
        twice = path.read_bytes().replace(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight")
        path.write_bytes(twice)
        with pytest.raises(WeightsError, match=r"blk\.0\.attn_q\.weight is there twice"):
            open_source(source)

    def test_a_missing_tensor(self, path: Path) -> None:
        model = tiny_model()
        tensors = dict(model.tensors)
        del tensors["model.layers.1.self_attn.o_proj.weight"]
        with pytest.raises(WeightsError, match=r"no tensor model\.layers\.1\.self_attn\.o_proj"):
            open_source(write_gguf(path, TinyModel(spec=model.spec, tensors=tensors)))

    def test_not_a_number(self, path: Path) -> None:
        model = tiny_model()
        name = "model.layers.0.mlp.up_proj.weight"
        model.tensors[name][3, 4] = np.nan
        opened = open_source(write_gguf(path, model))
        with pytest.raises(WeightsError, match=f"{name} has NaN") as caught:
            opened.read(name)
        assert caught.value.code == "weights_not_finite"

    def test_a_type_that_is_not_the_datas(self, path: Path) -> None:
        """Q8_0 said to be Q4_0: half of each tensor would be read, as something else."""
        source = write_gguf(path, tiny_model(), quant=Q.Q8_0)
        name = b"blk.1.ffn_up.weight"
        content = path.read_bytes()
        at = content.index(name) + len(name) + 4 + 2 * 8  # behind its dimensions
        assert struct.unpack_from("<I", content, at)[0] == Q.Q8_0
        path.write_bytes(content[:at] + struct.pack("<I", Q.Q4_0) + content[at + 4 :])
        with pytest.raises(WeightsError, match="begins at byte") as caught:
            open_source(source)
        assert caught.value.code == "weights_disagree"

    def test_scales_that_are_not_finite(self, path: Path) -> None:
        """Kept as codes, they are refused as dense weights are."""
        source = write_gguf(path, tiny_model(), quant=Q.Q4_1)
        opened = open_source(source)
        assert isinstance(opened, GgufSource)
        place = opened.header.tensors["blk.1.ffn_up.weight"]
        content = bytearray(path.read_bytes())
        content[place.offset + 2 : place.offset + 4] = np.float16(np.inf).tobytes()
        path.write_bytes(content)
        name = "model.layers.1.mlp.up_proj.weight"
        with pytest.raises(WeightsError, match=f"{name} has NaN or infinite") as caught:
            open_source(source).read_coded(name)  # type: ignore[attr-defined]
        assert caught.value.code == "weights_not_finite"

    @pytest.mark.parametrize("head", [b"\x80\x04\x95", b"PK\x03\x04"])
    def test_a_pickle_with_another_name(self, path: Path, head: bytes) -> None:
        path.write_bytes(head + bytes(4000))
        with pytest.raises(WeightsError, match="pickle") as caught:
            open_source(_source(path))
        assert caught.value.code == "weights_pickle"

    def test_random_bytes(self, path: Path) -> None:
        rng = np.random.default_rng(1)
        for size in (1, 30, 3000):
            path.write_bytes(rng.bytes(size))
            with pytest.raises(WeightsError):
                open_source(_source(path))

    def test_absurd_counts_and_lengths(self, path: Path) -> None:
        whole = write_gguf(path, tiny_model())
        content = path.read_bytes()
        for at in (8, 16, 24):  # tensors, keys, length of the first key
            path.write_bytes(content[:at] + struct.pack("<Q", 2**61) + content[at + 8 :])
            with pytest.raises(WeightsError):
                open_source(whole)

    def test_big_endian_or_a_version_to_come(self, path: Path) -> None:
        source = write_gguf(path, tiny_model())
        content = path.read_bytes()
        path.write_bytes(content[:4] + struct.pack("<I", 4) + content[8:])
        with pytest.raises(ModelError, match="version 4"):
            open_source(source)

    def test_flipped_header_bytes_never_escape_as_other_errors(self, path: Path) -> None:
        source = write_gguf(path, tiny_model(num_layers=1))
        content = bytearray(path.read_bytes())
        rng = np.random.default_rng(3)
        for at in rng.integers(0, 2500, size=400):
            damaged = bytearray(content)
            damaged[at] ^= 1 << int(rng.integers(0, 8))
            path.write_bytes(damaged)
            try:
                opened = open_source(source)
                for name in opened.tensor_names():
                    values_of(opened, name)
                opened.close()
            except ModelError:
                continue


def test_names_map_one_to_one() -> None:
    model = tiny_model(Architecture.QWEN3, tie_embeddings=False)
    names = [gguf_name(name) for name in model.tensors]
    assert len(set(names)) == len(names)


def _source(path: Path) -> ModelSource:
    return resolve(str(path))
