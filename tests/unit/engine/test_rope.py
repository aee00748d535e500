"""Rotations beyond the trained context, and what is refused."""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from node.engine.rope import pair_channels, rotation_tables
from plait.errors import ModelError
from plait.types import RopeScaling
from tests.unit.engine.kit import CPU, tiny_model

SPEC = replace(tiny_model("llama").spec, context_tokens_max=32)


def test_dynamic_scaling_turns_each_position_as_the_last_of_its_sequence() -> None:
    scaling = RopeScaling(kind="dynamic", factor=2.0)
    table = rotation_tables(replace(SPEC, rope_scaling=scaling), 80, CPU.torch_device).tables[0]
    config = LlamaConfig(
        hidden_size=48,
        num_attention_heads=6,
        max_position_embeddings=32,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    )
    rotary = LlamaRotaryEmbedding(config)
    for position in (0, 31, 32, 50, 79):
        cos, sin = rotary(torch.zeros(1), torch.tensor([[position]]))
        torch.testing.assert_close(table[position].real, cos[0, 0, :4], atol=1e-4, rtol=0)
        torch.testing.assert_close(table[position].imag, sin[0, 0, :4], atol=1e-4, rtol=0)


def test_an_unknown_scaling_is_refused_by_name() -> None:
    spec = replace(SPEC, rope_scaling=RopeScaling(kind="spiral", factor=2.0))
    with pytest.raises(ModelError, match="spiral"):
        rotation_tables(spec, 8, CPU.torch_device)


def test_pairs_stand_side_by_side_in_every_head() -> None:
    rows = torch.arange(16)
    assert pair_channels(rows, SPEC).tolist() == [0, 4, 1, 5, 2, 6, 3, 7] + [
        8 + i for i in (0, 4, 1, 5, 2, 6, 3, 7)
    ]
