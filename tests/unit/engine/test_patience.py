"""Waiting for late works: briefly, for those who come; ever less often for those who do not."""

from itertools import pairwise

from node.engine.batcher import Batcher
from node.engine.patience import Patience
from plait.types import RequestId
from tests.unit.engine.test_batcher import HELD, SPEC, opened, step, work

STAGE_MS = 10.0


def make(names: str, *, group_max: int = 6) -> tuple[Batcher, Patience]:
    batcher = Batcher(step_tokens_max=8, queue_tokens_max=64)
    batcher.hold(SPEC, HELD)
    for name in names:
        batcher.open(opened(name, kv_tokens=10))
    return batcher, Patience(batcher, group_max=group_max, limit_ms=15.0)


def waited_s(patience: Patience, step: int, stage_ms: float = STAGE_MS) -> list[float]:
    """How long a step would wait if nobody came."""
    return [limit_s for expecting, limit_s in patience.waits(stage_ms, step) if expecting()]


def test_a_lone_sequence_is_never_delayed() -> None:
    batcher, patience = make("a")
    batcher.submit(work("a"))
    assert all(waited_s(patience, step) == [] for step in range(50))


def test_companions_are_worth_half_a_step_others_a_moment() -> None:
    batcher, patience = make("ab")
    batcher.submit(work("a"))
    assert waited_s(patience, 0) == [0.03 * STAGE_MS / 1e3]
    batcher.submit(work("b"))
    step(batcher)
    batcher.submit(work("a", 1))
    assert waited_s(patience, 1) == [0.5 * STAGE_MS / 1e3, 0.03 * STAGE_MS / 1e3]


def test_no_wait_exceeds_its_bound() -> None:
    batcher, patience = make("ab")
    for name in "ab":
        batcher.submit(work(name))
    step(batcher)
    batcher.submit(work("a", 1))
    assert waited_s(patience, 100, stage_ms=1e6) == [0.015, 0.15]


def test_groups_are_merged_rarely_and_ever_more_rarely_in_vain() -> None:
    batcher, patience = make("ab")
    batcher.submit(work("a"))
    long_s = 6 * STAGE_MS / 1e3
    tried = [step for step in range(3000) if long_s in waited_s(patience, step)]
    gaps = [b - a for a, b in pairwise(tried)]
    assert tried[0] == 8 and gaps == sorted(gaps) and gaps[:3] == [16, 32, 64]
    assert max(gaps) == 1024
    patience.sequence_opened(3000)
    again = [step for step in range(3000, 3030) if long_s in waited_s(patience, step)]
    assert again == [3008, 3024]


def test_many_sequences_are_not_merged() -> None:
    batcher, patience = make("abc", group_max=2)
    batcher.submit(work("a"))
    assert all(max(waited_s(patience, step)) < 0.001 for step in range(100))
    batcher.close(RequestId("c"), 1)
    assert max(waited_s(patience, 101)) == 6 * STAGE_MS / 1e3


def stepped(patience: Patience, *, num_sequences: int, step_ms: float, every_ms: float) -> None:
    for at in range(24):
        patience.stepped(num_sequences, step_ms, every_ms * at)


def test_where_frames_travel_longer_than_they_are_computed_nobody_is_waited_for() -> None:
    batcher, patience = make("abcd")
    patience.sequence_opened(0, travel_ms=10.1)
    stepped(patience, num_sequences=4, step_ms=10.0, every_ms=100.0)
    for name in "abcd":
        batcher.submit(work(name))
    assert patience.decodes_max == 1
    batcher.take()
    batcher.submit(work("a", 1))
    assert batcher.expects_companions() and waited_s(patience, 30) == []


def test_stages_that_share_a_processor_share_steps_though_they_seem_to_have_time() -> None:
    batcher, patience = make("abcd")
    patience.sequence_opened(0, travel_ms=9.9)
    stepped(patience, num_sequences=4, step_ms=10.0, every_ms=100.0)
    batcher.submit(work("a"))
    assert patience.decodes_max is None and waited_s(patience, 30) != []


def test_a_stage_that_is_short_of_time_shares_its_steps() -> None:
    batcher, patience = make("ab")
    patience.sequence_opened(0, travel_ms=1e6)
    assert patience.decodes_max is None, "nothing is known yet"
    stepped(patience, num_sequences=2, step_ms=10.0, every_ms=25.0)
    batcher.submit(work("a"))
    assert patience.decodes_max is None and waited_s(patience, 3) != []


def test_what_went_on_before_a_pause_says_nothing() -> None:
    batcher, patience = make("")
    patience.sequence_opened(0, travel_ms=60.0)
    stepped(patience, num_sequences=1, step_ms=1.0, every_ms=100.0)
    assert patience.is_roomy
    batcher.open(opened("a", kv_tokens=10))
    patience.sequence_opened(24, travel_ms=60.0)
    assert not patience.is_roomy
