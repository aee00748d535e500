"""What experts do to rows: gates at their limits, and neighbours that do not matter."""

import torch
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from node.engine.layers.mlp import GatedMlp, gated
from node.engine.layers.moe import MixtureOfExperts
from node.engine.linear import make_linear
from plait.types import Activation

WIDTH = 16


def test_gpt_oss_clamps_large_gates_as_transformers_does() -> None:
    config = GptOssConfig(
        hidden_size=8, intermediate_size=64, num_local_experts=1, num_hidden_layers=1
    )
    gate_up = torch.randn(5, 128, generator=torch.Generator().manual_seed(1)) * 12
    assert gate_up.abs().max() > 7
    expected = GptOssExperts(config)._apply_gate(gate_up)
    ours = gated(gate_up[:, ::2], gate_up[:, 1::2], Activation.CLAMPED_SWIGLU)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def mixture() -> MixtureOfExperts:
    generator = torch.Generator().manual_seed(2)

    def linear(num_out: int, num_in: int) -> torch.Tensor:
        return torch.randn(num_out, num_in, generator=generator)

    experts = [
        GatedMlp(make_linear(linear(2 * WIDTH, WIDTH)), make_linear(linear(WIDTH, WIDTH)))
        for _ in range(6)
    ]
    return MixtureOfExperts(make_linear(linear(6, WIDTH)), experts, num_chosen=2, renormalises=True)


@torch.inference_mode()
def test_a_row_is_the_same_whatever_rows_stand_beside_it() -> None:
    experts = mixture()
    rows = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(3))
    together = experts(rows, rows)
    for at in range(0, 36, 4):
        assert torch.equal(experts(rows[at : at + 4], rows[at : at + 4]), together[at : at + 4])


@torch.inference_mode()
def test_a_residual_is_added_and_not_changed() -> None:
    experts = mixture()
    rows = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(4))
    before = rows.clone()
    torch.testing.assert_close(experts(rows, rows), rows + experts(rows, None))
    assert torch.equal(rows, before)
