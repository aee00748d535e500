"""Which numbers a network computes with."""

from collections import Counter
from pathlib import Path

import pytest
from gguf.constants import GGMLQuantizationType

from plait.errors import ConfigError
from plait.models import choose_format, in_format, load_spec, open_source, resolve, suits
from plait.models.source import TensorSource
from plait.types import WeightFormat
from plait.wire.codec import model_spec_from_proto, model_spec_to_proto
from tests.kit.tiny_model import write_tiny_model
from tests.unit.models.tiny import tiny_model, write_gguf


class OfTypes:
    """Only says what its tensors are."""

    def __init__(self, **num_bytes: int) -> None:
        self._types = Counter(num_bytes)

    def stored_types(self) -> Counter[str]:
        return self._types


@pytest.mark.parametrize(
    ("choice", "types", "expected"),
    [
        ("auto", {"F32": 10, "F16": 3}, WeightFormat.NATIVE),
        ("auto", {"F32": 1, "F16": 30}, WeightFormat.FP16),
        ("auto", {"F32": 1, "Q4_K": 30, "Q6_K": 9}, WeightFormat.FP16),
        ("fp32", {"Q8_0": 30}, WeightFormat.NATIVE),
        ("fp16", {"F32": 30}, WeightFormat.FP16),
        ("int8", {"Q8_0": 30}, WeightFormat.Q8_0),
        ("int8", {"BF16": 30}, WeightFormat.INT8),
        ("int4", {"Q4_K": 30}, WeightFormat.Q4_1),
        ("int4", {"GPTQ": 30, "F16": 3}, WeightFormat.INT4),
        ("stored", {"Q4_K": 30, "Q6_K": 9, "F32": 1}, WeightFormat.STORED),
        ("stored", {"F32": 30}, WeightFormat.NATIVE),
    ],
)
def test_the_format_follows_from_the_wish_and_the_file(
    choice: str, types: dict[str, int], expected: WeightFormat
) -> None:
    source: TensorSource = OfTypes(**types)  # type: ignore[assignment]
    assert choose_format(choice, source) is expected
    assert suits(choice, expected)


def test_a_file_of_float32_is_computed_with_as_it_is(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    source = open_source(resolve(str(tmp_path)))
    assert choose_format("auto", source) is WeightFormat.NATIVE
    source.close()


def test_owners_refuse_other_numbers() -> None:
    assert suits("auto", WeightFormat.Q4_1)
    assert not suits("fp32", WeightFormat.FP16)
    assert not suits("int8", WeightFormat.Q4_1)


def test_what_cannot_be_kept_is_refused_by_its_name() -> None:
    source: TensorSource = OfTypes(Q4_K=9, IQ2_XS=30)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"as IQ2_XS, which.*Q4_K.*--weights fp16"):
        choose_format("stored", source)


def test_a_files_bits_are_told_with_its_format(tmp_path: Path) -> None:
    model = tiny_model()
    source = write_gguf(tmp_path / "tiny.gguf", model, quant=GGMLQuantizationType.Q4_1)
    opened = open_source(source)
    spec = in_format(load_spec(source), "stored", opened)
    assert spec.weight_format is WeightFormat.STORED
    assert spec.stored_layer_bits == pytest.approx(5.15, abs=0.2)
    assert spec.stored_end_bits == pytest.approx(5.15, abs=0.01)
    assert model_spec_from_proto(model_spec_to_proto(spec)) == spec
    assert in_format(spec, "fp16", opened).weight_format is WeightFormat.FP16


def test_an_unknown_word_names_the_known_ones() -> None:
    source: TensorSource = OfTypes(F16=1)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="auto, fp32, fp16, int8, int4"):
        choose_format("int3", source)
