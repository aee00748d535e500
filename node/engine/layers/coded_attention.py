"""Attention over a cache of int8, a block of tokens at a time.

Scales of keys multiply scores, those of values weights: codes are only made wide. Over several
blocks the softmax is taken as they come: Milakov and Gimelshein, "Online normalizer calculation for
softmax" (2018).
"""

import torch
from torch import Tensor

from node.engine.coded_sight import CodedBlock, CodedSight
from node.engine.layers.scores import ScoreRule

_LEAST = -1e30
"""Of a row's largest score so far: finite, for rows that may see nothing of a block."""


def attend_coded(
    queries: Tensor,
    sight: CodedSight,
    layer: int,
    rule: ScoreRule | None,
    *,
    num_kv_heads: int,
    scale: float,
) -> Tensor:
    """Rows (sequences * rows, heads, head_dim) of the sight's sequences to rows of that shape,
    float32."""
    num_heads, head_dim = queries.shape[1:]
    num_sequences, num_tokens = sight.num_sequences, sight.num_tokens
    group = num_heads // num_kv_heads
    grid = (num_kv_heads, num_sequences, group, num_tokens)
    asked = queries.view(num_sequences, num_tokens, num_kv_heads, group, head_dim)
    asked = asked.permute(2, 0, 3, 1, 4).reshape(grid[0] * grid[1], grid[2] * grid[3], head_dim)
    asked = asked.float() * scale
    space = torch.empty(sight.wide_numbers, dtype=torch.float32, device=queries.device)
    if sight.num_blocks == 1 and (rule is None or rule.sinks is None):
        (block,) = sight.blocks(layer)
        weights = torch.softmax(_scores(asked, block, rule, grid, space), dim=-1)
        weights.mul_(block.value_scales)
        out = torch.bmm(weights, _wide(block.values, space))
    else:
        out = _over_blocks(asked, sight, layer, rule, grid, space)
    rows = out.view(*grid, head_dim).permute(1, 3, 0, 2, 4)
    return rows.reshape(num_sequences * num_tokens, num_heads, head_dim)


def _over_blocks(
    asked: Tensor,
    sight: CodedSight,
    layer: int,
    rule: ScoreRule | None,
    grid: tuple[int, int, int, int],
    space: Tensor,
) -> Tensor:
    """asked: (kv heads * sequences, group * rows, head_dim); returns the same shape."""
    most = asked.new_full((*asked.shape[:2], 1), _LEAST)
    total = torch.zeros_like(most)
    out = torch.zeros_like(asked)
    for block in sight.blocks(layer):
        scores = _scores(asked, block, rule, grid, space)
        largest = torch.maximum(most, scores.amax(-1, keepdim=True))
        weights = scores.sub_(largest).exp_()
        fade = most.sub_(largest).exp_()
        total.mul_(fade).add_(weights.sum(-1, keepdim=True))
        weights.mul_(block.value_scales)
        out.mul_(fade).baddbmm_(weights, _wide(block.values, space))
        most = largest
    if rule is not None and rule.sinks is not None:
        sinks = rule.sinks.float().view(grid[0], 1, grid[2], 1)
        total.view(grid).add_(sinks.sub(most.view(grid)).exp_())
    return out.div_(total)


def _scores(
    asked: Tensor,
    block: CodedBlock,
    rule: ScoreRule | None,
    grid: tuple[int, int, int, int],
    space: Tensor,
) -> Tensor:
    """(kv heads * sequences, group * rows, tokens); what is hidden is minus infinity."""
    scores = torch.bmm(asked, _wide(block.keys, space).transpose(1, 2))
    scores.mul_(block.key_scales)
    if rule is not None:
        rule.cap(scores)
    if block.hidden is not None:
        scores.view(*grid, -1).masked_fill_(block.hidden, float("-inf"))
    return scores


def _wide(codes: Tensor, space: Tensor) -> Tensor:
    """As float32, in `space`."""
    return space[: codes.numel()].view(codes.shape).copy_(codes)
