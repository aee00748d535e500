"""Parts of decoder layers, built from a model's tensors. What families share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from node.engine.layers.attention import Attention
from node.engine.layers.block import FeedForward
from node.engine.layers.joins import ALONE, Joins
from node.engine.layers.mlp import GatedMlp
from node.engine.layers.moe import MixtureOfExperts
from node.engine.layers.norm import RmsNorm
from node.engine.layers.scores import ScoreRule
from node.engine.layouts.coded import CodedWeight
from node.engine.layouts.weights import Weight, stacked, with_rows
from node.engine.linear import Linear, make_linear
from node.engine.rope import pair_channels
from plait.types import Architecture, ModelSpec


def _dense_linear(weight: Weight, bias: Tensor | None) -> Linear:
    assert isinstance(weight, Tensor)
    return make_linear(weight, bias)


@dataclass(frozen=True, slots=True)
class ReadTensor:
    """`read` gives one tensor by name, on the device and in its dtype; `linear` makes a product of
    a weight and a bias, in the layout that the device holds this model in; `joins` puts together
    what other ranks of a group have parts of; `read_weight` gives a matrix for `linear`, as codes
    where a file's own are kept (None: as `read` does)."""

    read: Callable[[str], Tensor]
    linear: Callable[[Weight, Tensor | None], Linear] = _dense_linear
    joins: Joins = ALONE
    read_weight: Callable[[str], Tensor | CodedWeight] | None = None

    def __call__(self, name: str) -> Tensor:
        return self.read(name)

    def weight(self, name: str) -> Tensor | CodedWeight:
        """A matrix (out, in) that `linear` takes."""
        return self.read(name) if self.read_weight is None else self.read_weight(name)


_NORMS_FROM_ONE: Final = frozenset((Architecture.GEMMA2, Architecture.GEMMA3))
"""Families whose norms store how far each weight is from one."""


def under(read: ReadTensor, prefix: str) -> ReadTensor:
    """Reads names below `prefix`."""
    return replace(
        read,
        read=lambda leaf: read(f"{prefix}.{leaf}"),
        read_weight=lambda leaf: read.weight(f"{prefix}.{leaf}"),
    )


def load_norm(read: ReadTensor, name: str, spec: ModelSpec) -> RmsNorm:
    """The norm whose weight is called `name`."""
    return RmsNorm(read_gamma(read, name, spec), spec.norm_eps)


def read_gamma(read: ReadTensor, name: str, spec: ModelSpec) -> Tensor:
    """A norm's weight as it is multiplied with."""
    gamma = read(name)
    return gamma + 1 if spec.architecture in _NORMS_FROM_ONE else gamma


def load_attention(
    read: ReadTensor, spec: ModelSpec, layer: int, rule: ScoreRule | None = None
) -> Attention:
    """Attention of separate q, k and v, fused into one product."""
    weights = {kind: read.weight(f"self_attn.{kind}_proj.weight") for kind in ("q", "k", "v")}
    biases: dict[str, Tensor] = {}
    if spec.attention_bias:
        biases = {kind: read(f"self_attn.{kind}_proj.bias") for kind in ("q", "k", "v")}
    paired = [paired_rows(weights[kind], spec) for kind in ("q", "k")]
    weight = stacked([*paired, weights["v"]])
    bias = _paired(biases, spec) if biases else None
    return attention_from(read, spec, layer, weight, bias, rule)


def attention_from(
    read: ReadTensor,
    spec: ModelSpec,
    layer: int,
    qkv: Weight,
    qkv_bias: Tensor | None = None,
    rule: ScoreRule | None = None,
) -> Attention:
    """Attention over a fused product whose q and k have their rotated channels in pairs."""
    gamma: Tensor | None = None
    if spec.qk_norm:
        q_gamma = pair_channels(read_gamma(read, "self_attn.q_norm.weight", spec), spec)
        k_gamma = pair_channels(read_gamma(read, "self_attn.k_norm.weight", spec), spec)
        gamma = torch.cat(
            [q_gamma.expand(spec.num_heads, -1), k_gamma.expand(spec.num_kv_heads, -1)]
        )
    out_weight = read.weight("self_attn.o_proj.weight")
    out_bias = read("self_attn.o_proj.bias") if spec.attention_output_bias else None
    return Attention(
        spec,
        read.linear(qkv, qkv_bias),
        read.joins.out(read.linear(out_weight, out_bias)),
        gamma,
        layer=layer,
        rule=rule,
    )


def load_mlp(read: ReadTensor, spec: ModelSpec, prefix: str = "mlp") -> GatedMlp:
    """An MLP of separate gate and up, fused into one product."""
    weights: dict[str, Tensor | CodedWeight] = {}
    biases: dict[str, Tensor] = {}
    for kind in ("gate", "up", "down"):
        weights[kind] = read.weight(f"{prefix}.{kind}_proj.weight")
        if spec.mlp_bias:
            biases[kind] = read(f"{prefix}.{kind}_proj.bias")
    gate_up_bias = torch.cat([biases["gate"], biases["up"]]) if biases else None
    gate_up = read.linear(stacked([weights.pop("gate"), weights.pop("up")]), gate_up_bias)
    down = read.joins.out(read.linear(weights["down"], biases.get("down")))
    return GatedMlp(gate_up, down, spec.activation)


def load_experts(read: ReadTensor, spec: ModelSpec) -> FeedForward:
    """A router and its experts, one after the other."""
    # The router stays exact: another expert is another answer.
    router_bias = read("mlp.gate.bias") if spec.mlp_bias else None
    router = read.joins.router(make_linear(read("mlp.gate.weight"), router_bias))
    by_itself = replace(read, joins=ALONE)  # the sum over all experts is joined, once
    experts = [load_mlp(by_itself, spec, f"mlp.experts.{i}") for i in range(spec.num_experts)]
    mixture = MixtureOfExperts(
        router,
        experts,
        num_chosen=spec.experts_per_token,
        renormalises=spec.renormalises_experts,
    )
    return read.joins.feed_forward(mixture)


def paired_rows(
    weight: Tensor | CodedWeight, spec: ModelSpec, num_rows: int | None = None
) -> Tensor | CodedWeight:
    """The first `num_rows` outputs, all when left out, with their rotated channels in pairs; the
    others stay."""
    order = torch.arange(weight.shape[0])
    cut = len(order) if num_rows is None else num_rows
    paired = torch.cat([pair_channels(order[:cut], spec), order[cut:]])
    return with_rows(weight, paired)


def _paired(parts: dict[str, Tensor], spec: ModelSpec) -> Tensor:
    """q, k and v one after the other; q and k with their rotated channels in pairs."""
    return torch.cat([pair_channels(parts["q"], spec), pair_channels(parts["k"], spec), parts["v"]])
