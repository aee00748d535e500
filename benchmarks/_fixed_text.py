"""The fixed text that accuracy is measured on, and how well logits foretell it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from transformers import AutoTokenizer

from plait import config
from plait.models import CATALOGUE
from plait.models.records import catalogue_folder

TEXT: Final = Path(__file__).with_name("fixed_text.txt")


def text_ids(model_name: str) -> list[int]:
    """The text as token ids of a catalogue model that was pulled."""
    folder = catalogue_folder(config.models_dir(), model_name)
    entry = CATALOGUE[model_name]
    tokenizer = AutoTokenizer.from_pretrained(str(folder), gguf_file=entry.file_name)
    ids: list[int] = tokenizer(TEXT.read_text("utf-8"))["input_ids"]
    return ids


def perplexity_of(logits: Tensor, ids: Sequence[int]) -> float:
    """Of `ids` (tokens,) under `logits` (tokens, vocabulary), each row of which foretells the next
    token."""
    targets = torch.tensor(list(ids[1:]))
    return math.exp(float(torch.nn.functional.cross_entropy(logits[:-1], targets)))
