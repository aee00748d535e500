"""From queries times keys to weights, where a model does more than a softmax."""

import torch
from torch import Tensor

from node.engine.tensor_bytes import num_bytes


class ScoreRule:
    """What happens to a layer's scores: a soft cap (Gemma Team, "Gemma 2", 2024, section 2), and a
    sink a head, which takes its share of the softmax and gives nothing (OpenAI's gpt-oss).

    `sinks` (heads,), or None where there are none.
    """

    __slots__ = ("_sinks", "_softcap")

    def __init__(self, *, softcap: float | None = None, sinks: Tensor | None = None) -> None:
        self._softcap = softcap
        self._sinks = sinks

    @property
    def weight_bytes(self) -> int:
        """Bytes of the sinks in memory."""
        return num_bytes(self._sinks)

    @property
    def sinks(self) -> Tensor | None:
        """(heads,), or None where there are none."""
        return self._sinks

    def of_heads(self, heads: slice) -> "ScoreRule":
        """The same for some of the heads."""
        sinks = None if self._sinks is None else self._sinks[heads]
        return ScoreRule(softcap=self._softcap, sinks=sinks)

    def cap(self, scores: Tensor) -> None:
        """The soft cap, in place."""
        if self._softcap is not None:
            scores.div_(self._softcap).tanh_().mul_(self._softcap)

    def weights(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """scores: (..., rows, cached tokens), may be changed; `mask` is True where a row may look.

        The dimensions between batch and cached tokens, flattened, start with the heads.
        """
        self.cap(scores)
        if mask is not None:
            scores = scores.masked_fill_(~mask, float("-inf"))
        if self._sinks is None:
            return torch.softmax(scores, dim=-1)
        sinks = self._sinks.view(_sink_shape(scores, len(self._sinks)))
        columns = sinks.expand(*scores.shape[:-1], 1).to(scores.dtype)
        return torch.softmax(torch.cat([scores, columns], dim=-1), dim=-1)[..., :-1]


def weigh(scores: Tensor, rule: ScoreRule | None, mask: Tensor | None = None) -> Tensor:
    """Weights of the cached tokens, by `rule` or a plain softmax. May change `scores`."""
    if rule is None:
        return torch.softmax(scores, dim=-1)
    return rule.weights(scores, mask)


def _sink_shape(scores: Tensor, num_heads: int) -> tuple[int, int, int]:
    """(heads, rows, cached) scores have a sink for each first index; (kv heads, group, cached) ones
    for each pair of the first two."""
    first = scores.shape[-3]
    return (first, num_heads // first, 1)
