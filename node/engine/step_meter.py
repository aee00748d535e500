"""What steps took, by kind: what the coordinator holds its predictions against."""

from collections.abc import Sequence
from dataclasses import replace

from node.engine.sequence import StepItem
from plait.types import StepTotals


class StepMeter:
    """Sums over steps of decodes alone and of prompts alone; mixed ones tell neither."""

    def __init__(self) -> None:
        self.totals = StepTotals()

    def record(self, items: Sequence[StepItem], step_ms: float) -> None:
        """Count a step that ran `items` in `step_ms`."""
        if not items:
            return
        now = self.totals
        num_prompts = sum(not item.work.is_decode for item in items)
        layers = [len(item.sequence.opened.span) for item in items]
        if num_prompts == 0:
            self.totals = replace(
                now,
                decode_steps=now.decode_steps + 1,
                decode_ms=now.decode_ms + step_ms,
                decode_rows=now.decode_rows + sum(item.work.num_tokens for item in items),
                decode_layers=now.decode_layers + round(sum(layers) / len(items)),
            )
        elif num_prompts == len(items):
            tokens = sum(
                item.work.num_tokens * count for item, count in zip(items, layers, strict=True)
            )
            self.totals = replace(
                now,
                prefill_steps=now.prefill_steps + 1,
                prefill_ms=now.prefill_ms + step_ms,
                prefill_layer_tokens=now.prefill_layer_tokens + tokens,
            )
