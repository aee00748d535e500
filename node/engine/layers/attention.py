"""Grouped-query attention over the cache, for rows of many sequences at once."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.linear import Linear
from node.engine.step_plan import AttendedChunk, GatheredDecodes, StepPlan
from plait.types import ModelSpec


class Attention:
    """residual + out(attend(rope(qkv(x)))). Ainslie et al., "GQA" (2023).

    Products run over all rows together; only the look into the cache goes sequence by sequence, so
    no sequence's result depends on its neighbours. `qk_gamma` (heads + kv heads, head_dim) is the
    weight of the norm over each head's queries and keys, None where the model has none.
    """

    __slots__ = (
        "_eps",
        "_head_dim",
        "_num_heads",
        "_num_kv_heads",
        "_out",
        "_qk_gamma",
        "_qkv",
        "_scale",
    )

    def __init__(
        self, spec: ModelSpec, qkv: Linear, out: Linear, qk_gamma: Tensor | None = None
    ) -> None:
        self._num_heads = spec.num_heads
        self._num_kv_heads = spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._scale = spec.head_dim**-0.5
        self._eps = spec.norm_eps
        self._qkv = qkv
        self._out = out
        self._qk_gamma = qk_gamma

    @property
    def weight_bytes(self) -> int:
        gamma = self._qk_gamma
        gamma_bytes = 0 if gamma is None else gamma.numel() * gamma.element_size()
        return self._qkv.weight_bytes + self._out.weight_bytes + gamma_bytes

    def __call__(self, rows: Tensor, residual: Tensor, layer: int, plan: StepPlan) -> Tensor:
        """rows, residual: (R, hidden). Writes the rows' keys and values into the cache."""
        num_queries_keys = self._num_heads + self._num_kv_heads
        heads = self._qkv(rows).view(len(rows), -1, self._head_dim)
        self._rotate(heads[:, :num_queries_keys], plan.rotations)
        stored = heads[: plan.num_rows, self._num_heads :].transpose(0, 1)
        plan.cells[layer].index_copy_(1, plan.slots, stored)
        attended = plan.attended_rows  # (R, H, D), the same buffer for every layer
        if plan.gathered is not None:
            self._attend_gathered(heads, plan.gathered, plan.cells[layer], attended)
        for chunk in plan.attended:
            if chunk.num_tokens == 1:
                self._attend_one(heads[chunk.row], chunk, layer, attended[chunk.row])
            else:
                self._attend_many(heads, chunk, layer, attended)
        return self._out.plus(attended.view(len(rows), -1), residual)

    def _rotate(self, queries_keys: Tensor, rotations: Tensor) -> None:
        """Norm (where the model has it) and rotate (R, heads, head_dim), in place."""
        turned = queries_keys
        if self._qk_gamma is not None:
            turned = F.rms_norm(turned, (self._head_dim,), None, self._eps).mul_(self._qk_gamma)
        if turned.dtype is not torch.float32:
            turned = turned.float()
        pairs = torch.view_as_complex(turned.view(*turned.shape[:2], -1, 2)).mul_(rotations)
        if turned is not queries_keys:
            queries_keys.copy_(torch.view_as_real(pairs).view(turned.shape))

    def _attend_one(self, heads: Tensor, chunk: AttendedChunk, layer: int, out: Tensor) -> None:
        """One row: the queries that share a kv head are the rows of one small product."""
        queries = heads[: self._num_heads].view(self._num_kv_heads, -1, self._head_dim)
        out = out.view(queries.shape)
        if queries.dtype is torch.float32 and queries.device.type == "cpu":
            scores = torch.bmm(queries, chunk.keys_t[layer]).mul_(self._scale)
            torch.bmm(torch.softmax(scores, dim=-1), chunk.values[layer], out=out)
            return
        keys, values = chunk.keys[layer].unsqueeze(0), chunk.values[layer].unsqueeze(0)
        out.copy_(F.scaled_dot_product_attention(queries.unsqueeze(0), keys, values)[0])

    def _attend_many(
        self, heads: Tensor, chunk: AttendedChunk, layer: int, attended: Tensor
    ) -> None:
        """A prefill chunk of T rows: (1, H, T, D) over (1, kv heads, cached tokens, D)."""
        rows = slice(chunk.row, chunk.row + chunk.num_tokens)
        result = F.scaled_dot_product_attention(
            heads[rows, : self._num_heads].transpose(0, 1).unsqueeze(0),
            chunk.keys[layer].unsqueeze(0),
            chunk.values[layer].unsqueeze(0),
            attn_mask=chunk.mask,
            is_causal=chunk.is_causal,
            enable_gqa=self._num_heads != self._num_kv_heads,
        )
        attended[rows] = result[0].transpose(0, 1)

    def _attend_gathered(
        self, heads: Tensor, gathered: GatheredDecodes, cells: Tensor, attended: Tensor
    ) -> None:
        """Rows [0, n) of n sequences: (n, kv heads, group, D) over padded copies of their cache."""
        num_rows, num_kv_heads = gathered.num_rows, self._num_kv_heads
        seen = cells[:, gathered.slots].transpose(0, 1)  # (n, 2 * kv heads, cached tokens, D)
        queries = heads[:num_rows, : self._num_heads]
        result = F.scaled_dot_product_attention(
            queries.view(num_rows, num_kv_heads, -1, self._head_dim),
            seen[:, :num_kv_heads],
            seen[:, num_kv_heads:],
            attn_mask=gathered.mask,
        )
        attended[:num_rows] = result.reshape(num_rows, self._num_heads, self._head_dim)
