"""Models and weights: where they come from, what shape they have, tensors by name.

Owns the sources (catalogue, hub, folder, GGUF), their integrity and what is pulled. Must never
import a role or torch. Needs the extra `models`.
"""

from plait.models.catalogue import CATALOGUE
from plait.models.formats import WEIGHT_CHOICES, choose_format, in_format, suits
from plait.models.naming import default_id, resolve
from plait.models.opening import load_spec, open_source, pin, prefetch, tokenizer_source
from plait.models.progress import PullProgress, ignore_progress
from plait.models.pulling import PulledModel, VerifyReport, list_pulled, pull, remove, verify
from plait.models.source import (
    ReadProgress,
    TensorData,
    TensorSource,
)
from plait.models.tensors import span_tensor_names, whole_tensor_names
from plait.models.tokenizer import TokenizerFiles

__all__ = [
    "CATALOGUE",
    "WEIGHT_CHOICES",
    "PullProgress",
    "PulledModel",
    "ReadProgress",
    "TensorData",
    "TensorSource",
    "TokenizerFiles",
    "VerifyReport",
    "choose_format",
    "default_id",
    "ignore_progress",
    "in_format",
    "list_pulled",
    "load_spec",
    "open_source",
    "pin",
    "prefetch",
    "pull",
    "remove",
    "resolve",
    "span_tensor_names",
    "suits",
    "tokenizer_source",
    "verify",
    "whole_tensor_names",
]
