"""Steps by kind: decodes alone, prompts alone, and mixed ones that tell neither."""

from node.engine.sequence import Sequence, StepItem
from node.engine.step_meter import StepMeter
from node.ports import SequenceOpen, StageWork
from plait.types import DType, LayerSpan, RequestId, StepTotals


def item(num_tokens: int, *, layers: int = 6) -> StepItem:
    opened = SequenceOpen(
        request_id=RequestId("r"),
        epoch=1,
        span=LayerSpan(2, 2 + layers),
        kv_tokens=64,
        wire_dtype=DType.FLOAT32,
    )
    work = StageWork(RequestId("r"), 1, 0, num_tokens, token_ids=[1] * num_tokens)
    return StepItem(Sequence(opened), work)


def test_each_kind_is_summed_up_and_a_mixed_step_counts_for_none() -> None:
    meter = StepMeter()
    meter.record([item(1), item(1), item(1, layers=3)], 4.0)
    meter.record([item(1)], 2.0)
    meter.record([item(100), item(50, layers=2)], 30.0)
    meter.record([item(1), item(100)], 999.0)
    meter.record([], 999.0)
    assert meter.totals == StepTotals(
        decode_steps=2,
        decode_ms=6.0,
        decode_rows=4,
        decode_layers=11,
        prefill_steps=1,
        prefill_ms=30.0,
        prefill_layer_tokens=700,
    )
