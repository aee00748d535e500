"""Grouped-query attention over the cache, for rows of many sequences at once."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.layers.coded_attention import attend_coded
from node.engine.layers.scores import ScoreRule, weigh
from node.engine.linear import Linear
from node.engine.step_plan import AttendedChunk, GatheredDecodes, Seen, StepPlan
from node.engine.tensor_bytes import num_bytes
from plait.types import ModelSpec


class Attention:
    """residual + out(attend(rope(qkv(x)))). Ainslie et al., "GQA" (2023).

    Products run over all rows together; only the look into the cache goes sequence by sequence, so
    no sequence's result depends on its neighbours. `qk_gamma` (heads + kv heads, head_dim) is the
    weight of the norm over each head's queries and keys, None where the model has none. `layer`
    counts from the model's first; it says the window and which rotations. `rule` is None where
    scores go straight into a softmax.
    """

    __slots__ = (
        "_eps",
        "_head_dim",
        "_num_heads",
        "_num_kv_heads",
        "_out",
        "_qk_gamma",
        "_qkv",
        "_rotation",
        "_rule",
        "_scale",
        "_window_tokens",
    )

    def __init__(
        self,
        spec: ModelSpec,
        qkv: Linear,
        out: Linear,
        qk_gamma: Tensor | None = None,
        *,
        layer: int,
        rule: ScoreRule | None = None,
    ) -> None:
        self._num_heads = spec.num_heads
        self._num_kv_heads = spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._scale = spec.attention_scale or spec.head_dim**-0.5
        self._eps = spec.norm_eps
        self._qkv = qkv
        self._out = out
        self._qk_gamma = qk_gamma
        self._rule = rule
        self._window_tokens = spec.window_of(layer)
        self._rotation = _rotation_of(spec, layer)

    @property
    def weight_bytes(self) -> int:
        rule_bytes = 0 if self._rule is None else self._rule.weight_bytes
        return (
            self._qkv.weight_bytes + self._out.weight_bytes + num_bytes(self._qk_gamma) + rule_bytes
        )

    def __call__(self, rows: Tensor, residual: Tensor | None, layer: int, plan: StepPlan) -> Tensor:
        """rows, residual: (R, hidden); without a residual, what would be added to it. `layer`
        counts from the held span's first. Writes the rows' keys and values into the cache."""
        heads = self._qkv(rows).view(len(rows), -1, self._head_dim)
        if self._qk_gamma is not None:
            self._norm(heads, self._qk_gamma)
        kernels, cells = plan.pool.kernels, plan.pool.layers[layer]
        if kernels is not None:
            heads = heads.contiguous()
            turns = None if self._rotation is None else plan.tables[self._rotation]
            kernels.place(heads, turns, cells, plan.places)
        else:
            if self._rotation is not None:
                self._rotate(heads, plan.rotations[self._rotation])
            plan.write(layer, heads[: plan.num_rows, self._num_heads :].transpose(0, 1))
        attended = plan.attended_rows  # (R, H, D), the same buffer for every layer
        sight = plan.sight(self._window_tokens, by_kernels=self._rule is None)
        if kernels is not None and sight.rows is not None:
            kernels.attend(heads, cells, attended, sight.rows, scale=self._scale)
        if sight.gathered is not None:
            self._attend_gathered(heads, sight.gathered, cells, attended)
        for coded in sight.coded:
            span = slice(coded.row, coded.row + coded.num_rows)
            queries = heads[span, : self._num_heads]
            attended[span] = attend_coded(
                queries,
                coded,
                layer,
                self._rule,
                num_kv_heads=self._num_kv_heads,
                scale=self._scale,
            )
        for chunk in sight.attended:
            if chunk.num_tokens == 1:
                self._attend_one(heads[chunk.row], chunk, layer, attended[chunk.row])
            else:
                self._attend_many(heads, chunk, layer, attended)
        mixed = attended.view(len(rows), -1)
        return self._out(mixed) if residual is None else self._out.plus(mixed, residual)

    def _norm(self, heads: Tensor, gamma: Tensor) -> None:
        """Of queries and keys (R, heads, head_dim), in place."""
        normed = heads[:, : len(gamma)]
        normed.copy_(F.rms_norm(normed, (self._head_dim,), None, self._eps).mul_(gamma))

    def _rotate(self, heads: Tensor, rotations: Tensor) -> None:
        """Queries and keys (R, heads, head_dim), in place."""
        queries_keys = heads[:, : self._num_heads + self._num_kv_heads]
        is_wide = queries_keys.dtype is torch.float32
        turned = queries_keys if is_wide else queries_keys.float()
        torch.view_as_complex(turned.view(*turned.shape[:2], -1, 2)).mul_(rotations)
        if not is_wide:
            queries_keys.copy_(turned)

    def _attend_one(self, heads: Tensor, chunk: AttendedChunk, layer: int, out: Tensor) -> None:
        """One row: the queries that share a kv head are the rows of one small product."""
        queries = heads[: self._num_heads].view(self._num_kv_heads, -1, self._head_dim)
        out = out.view(queries.shape)
        is_plain_cpu = queries.dtype is torch.float32 and queries.device.type == "cpu"
        if self._rule is not None or is_plain_cpu:
            parts = chunk.parts(layer)
            if len(parts) > 1:
                self._attend_parts(queries, parts, out)
                return
            (seen,) = parts
            scores = torch.bmm(queries, seen.keys_t).mul_(self._scale)
            torch.bmm(weigh(scores, self._rule), seen.values, out=out)
            return
        seen = chunk.seen(layer)
        attended = F.scaled_dot_product_attention(
            queries.unsqueeze(0),
            seen.keys.unsqueeze(0),
            seen.values.unsqueeze(0),
            scale=self._scale,
        )
        out.copy_(attended[0])

    def _attend_parts(self, queries: Tensor, parts: list[Seen], out: Tensor) -> None:
        """One row over a cache in several runs, without a copy: scores side by side, one softmax,
        values added run by run."""
        scores = torch.cat([torch.bmm(queries, part.keys_t) for part in parts], dim=-1)
        weights = weigh(scores.mul_(self._scale), self._rule)
        at = 0
        for part in parts:
            end = at + part.values.shape[1]
            if at == 0:
                torch.bmm(weights[..., :end], part.values, out=out)
            else:
                out.baddbmm_(weights[..., at:end], part.values)
            at = end

    def _attend_many(
        self, heads: Tensor, chunk: AttendedChunk, layer: int, attended: Tensor
    ) -> None:
        """A prefill chunk of T rows: (1, H, T, D) over (1, kv heads, cached tokens, D)."""
        rows = slice(chunk.row, chunk.row + chunk.num_tokens)
        queries = heads[rows, : self._num_heads].transpose(0, 1)
        if self._rule is not None:
            self._attend_many_by_rule(queries, chunk, layer, attended[rows].transpose(0, 1))
            return
        seen = chunk.seen(layer)
        result = F.scaled_dot_product_attention(
            queries.unsqueeze(0),
            seen.keys.unsqueeze(0),
            seen.values.unsqueeze(0),
            attn_mask=chunk.mask,
            is_causal=chunk.is_causal,
            scale=self._scale,
            enable_gqa=self._num_heads != self._num_kv_heads,
        )
        attended[rows] = result[0].transpose(0, 1)

    def _attend_many_by_rule(
        self, queries: Tensor, chunk: AttendedChunk, layer: int, out: Tensor
    ) -> None:
        """queries, out: (H, T, D). A kv head at a time, so that the scores stay small."""
        assert self._rule is not None
        group = self._num_heads // self._num_kv_heads
        mask, seen = chunk.full_mask(), chunk.seen(layer)
        for kv_head in range(self._num_kv_heads):
            mine = slice(kv_head * group, (kv_head + 1) * group)
            scores = torch.matmul(queries[mine], seen.keys_t[kv_head]).mul_(self._scale)
            weights = weigh(scores, self._rule.of_heads(mine), mask)
            out[mine] = torch.matmul(weights, seen.values[kv_head])

    def _attend_gathered(
        self, heads: Tensor, gathered: GatheredDecodes, cells: Tensor, attended: Tensor
    ) -> None:
        """Rows [0, n) of n sequences: (n, kv heads, group, D) over padded copies of their cache."""
        num_rows, num_kv_heads = gathered.num_rows, self._num_kv_heads
        seen = cells[:, gathered.slots].transpose(0, 1)  # (n, 2 * kv heads, cached tokens, D)
        queries = heads[:num_rows, : self._num_heads]
        queries = queries.view(num_rows, num_kv_heads, -1, self._head_dim)
        keys, values = seen[:, :num_kv_heads], seen[:, num_kv_heads:]
        if self._rule is not None:
            scores = torch.matmul(queries, keys.transpose(2, 3)).mul_(self._scale)
            result = torch.matmul(weigh(scores, self._rule, gathered.mask), values)
        else:
            result = F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=gathered.mask, scale=self._scale
            )
        attended[:num_rows] = result.reshape(num_rows, self._num_heads, self._head_dim)


def _rotation_of(spec: ModelSpec, layer: int) -> int | None:
    """Which of the stage's tables of rotations a layer uses; None: none."""
    if layer in spec.unrotated_layers:
        return None
    is_local = spec.local_rope_theta is not None and spec.window_of(layer) is not None
    return 1 if is_local else 0
