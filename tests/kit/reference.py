"""transformers on the real SmolLM2, fp32: what our engines' tokens are held against.

It takes transformers half a minute to read the GGUF, so whoever comes first leaves what was read
for the others of this run.
"""

import os
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from transformers import LlamaConfig, LlamaForCausalLM

from plait.models import tokenizer_source
from tests.kit.network import smollm

LOCK_S = 300.0


def reference_model(factory: pytest.TempPathFactory) -> LlamaForCausalLM:
    """Read by transformers itself, from the same file."""
    source, _ = smollm()
    files = tokenizer_source(source)
    home = _of_all_workers(factory)
    weights, config = home / "smollm.pt", home / "smollm.json"
    with FileLock(home / "smollm.lock", timeout=LOCK_S):
        if not weights.exists():
            read = LlamaForCausalLM.from_pretrained(
                files.folder, gguf_file=files.gguf_file, dtype=torch.float32
            )
            read.config.to_json_file(config)
            torch.save(read.state_dict(), weights)
    model = LlamaForCausalLM(LlamaConfig.from_json_file(config))
    model.load_state_dict(torch.load(weights, mmap=True))
    model.train(mode=False)
    return model


def _of_all_workers(factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, of which each of xdist's workers has its own part."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
