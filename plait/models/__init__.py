"""Models and weights: where they come from, what shape they have, tensors by name.

Owns the sources (catalogue, hub, folder, GGUF), their integrity and what is pulled. Must never
import a role or torch. Needs the extra `plait[models]`.
"""

from plait.models.opening import load_spec, open_source
from plait.models.source import ReadProgress, TensorData, TensorSource, span_tensor_names

__all__ = [
    "ReadProgress",
    "TensorData",
    "TensorSource",
    "load_spec",
    "open_source",
    "span_tensor_names",
]
