"""Which tensors a model of a given shape consists of, and what each must look like."""

from collections.abc import Mapping

from plait.errors import WeightsError
from plait.models.tensors import span_tensor_names, tensor_shape
from plait.types import ModelSpec


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of the model, by name."""
    return {name: tensor_shape(spec, name) for name in span_tensor_names(spec, spec.whole)}


def check_layout(
    spec: ModelSpec, found: Mapping[str, tuple[int, ...]], *, where: Mapping[str, str]
) -> None:
    """Hold the tensors' shapes in the files' headers against the model's shape.

    Args:
        found: shape by Hugging Face's name.
        where: file by Hugging Face's name; the entry "" names the model as a whole.

    Raises:
        WeightsError: a tensor is missing or has another shape; says which, and in which file.
    """
    for name, shape in expected_shapes(spec).items():
        if name not in found:
            raise WeightsError(
                f"{where['']} has no tensor {name}, which a {spec.architecture} model of "
                f"{spec.num_layers} layers needs",
                reason="weights_incomplete",
            )
        if found[name] != shape:
            raise WeightsError(
                f"{where[name]}: tensor {name} has shape {found[name]}, the model's "
                f"configuration asks for {shape}",
                reason="weights_disagree",
            )
