"""Which numbers a network computes with."""

from collections import Counter
from pathlib import Path

import pytest

from plait.errors import ConfigError
from plait.models import choose_format, open_source, resolve, suits
from plait.models.source import TensorSource
from plait.types import WeightFormat
from tests.kit.tiny_model import write_tiny_model


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


def test_an_unknown_word_names_the_known_ones() -> None:
    source: TensorSource = OfTypes(F16=1)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="auto, fp32, fp16, int8, int4"):
        choose_format("int3", source)
