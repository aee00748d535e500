"""The journal: what went in comes out, and a replay refuses what it cannot repeat exactly."""

import threading
from pathlib import Path

import pytest

from coordinator.core import events as ev
from coordinator.shell.journal import Journal, read_entries, replay
from coordinator.shell.plain import event_from_plain, event_to_plain
from plait.errors import ConfigError
from plait.types import (
    DType,
    FinishReason,
    HeldSpan,
    LayerSpan,
    LayerTiming,
    ModelId,
    NodeId,
    NodeProfile,
    Reason,
    RequestId,
)
from tests.unit.shell.fakes import ALLOCATION, LOAD, FakeCore

NODE = NodeId("n1")
TIMING = LayerTiming(
    model_id=ModelId("tiny"),
    decode_layer_ms=1.0,
    decode_layer_ms_per_extra=0.5,
    prefill_layer_ms_per_token=0.1,
    head_ms=2.0,
    embed_ms=0.1,
    step_overhead_ms=0.2,
)
PROFILE = NodeProfile(
    node_id=NODE,
    display_name="one",
    device_kind="cpu",
    device_name="a cpu",
    memory_bytes=1 << 30,
    memory_bytes_per_s=1e10,
    flops_per_s=1e11,
    compute_dtype=DType.FLOAT32,
    coordinator_rtt_ms=0.5,
    up_bytes_per_s=1e8,
    down_bytes_per_s=1e8,
    timings=(TIMING,),
    addresses=("127.0.0.1:1", "127.0.0.1:2"),
)
HELD = HeldSpan(
    model_id=ModelId("tiny"),
    span=LayerSpan(1, 3),
    allocation_epoch=2,
    digest="d",
    weight_bytes=5,
    read_bytes=6,
    kv_tokens_max=7,
)
EVENTS: list[ev.Event] = [
    ev.NodeAttached(node_id=NODE, incarnation=1, display_name="é", addresses=("a:1",), held=HELD),
    ev.NodeAttached(node_id=NODE, incarnation=1, display_name="x", addresses=()),
    ev.NodeProfiled(profile=PROFILE, incarnation=1),
    ev.NodeReported(node_id=NODE, incarnation=1, load=LOAD),
    ev.NodeLoaded(node_id=NODE, incarnation=1, held=HELD),
    ev.NodeDrainAsked(node_id=NODE, incarnation=None, reason="r", limit_ms=5),
    ev.AllocationSolved(epoch=1, allocation=ALLOCATION),
    ev.AllocationSolved(epoch=1, allocation=None, reason=Reason(code="c", message="m")),
    ev.LastTokenSent(
        request_id=RequestId("q"), epoch=1, finish_reason=FinishReason.STOP, num_generated=3
    ),
    ev.Ticked(),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_survives_json(event: ev.Event) -> None:
    assert event_from_plain(event_to_plain(event)) == event


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"Nonsense": {}},
        {"NodeDrained": {"node_id": "n"}},
        {"NodeDrained": {"node_id": 3, "incarnation": 1}},
        {"NodeDrained": {"node_id": "n", "incarnation": "1"}},
        {"NodeDrained": [1]},
    ],
)
def test_nonsense_is_no_event(plain: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        event_from_plain(plain)  # type: ignore[arg-type]


def write(folder: Path, *, segment_bytes: int = 8 << 20, segments_max: int = 16) -> None:
    journal = Journal(
        folder, start_unix_ms=1, segment_bytes=segment_bytes, segments_max=segments_max
    )
    journal.start()
    for now_ms, event in enumerate(EVENTS):
        journal.append(now_ms, event)
    journal.stop()


def test_a_replay_tells_a_core_the_same_story(tmp_path: Path) -> None:
    write(tmp_path)
    core = FakeCore()
    assert replay(tmp_path, core) == len(EVENTS)
    assert core.told == [(event, now_ms) for now_ms, event in enumerate(EVENTS)]


def test_segments_are_read_in_order(tmp_path: Path) -> None:
    write(tmp_path, segment_bytes=200)
    assert len(list(tmp_path.glob("*.jsonl"))) > 3
    assert [event for _, event in read_entries(tmp_path)] == EVENTS


def test_a_run_whose_beginning_was_rotated_away_is_refused(tmp_path: Path) -> None:
    write(tmp_path, segment_bytes=200, segments_max=2)
    assert len(list(tmp_path.glob("*.jsonl"))) <= 2
    with pytest.raises(ConfigError, match="rotated away"):
        list(read_entries(tmp_path))


def test_the_newest_run_is_taken_unless_another_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    later = Journal(tmp_path, start_unix_ms=2)
    later.start()
    later.append(9, ev.Ticked())
    later.stop()
    assert list(read_entries(tmp_path)) == [(9, ev.Ticked())]
    first = min(tmp_path.glob("*.jsonl"))
    assert len(list(read_entries(first))) == len(EVENTS)


def test_a_line_torn_by_a_crash_ends_the_story(tmp_path: Path) -> None:
    write(tmp_path)
    (path,) = tmp_path.glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-10])
    assert [event for _, event in read_entries(tmp_path)] == EVENTS[:-1]


def test_a_torn_line_that_is_not_the_last_one_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (path,) = tmp_path.glob("*.jsonl")
    header, torn, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([header, torn[:-10] + b"\n", *rest]))
    with pytest.raises(ConfigError, match="torn"):
        list(read_entries(tmp_path))


def test_lost_entries_are_owned_up_to(tmp_path: Path) -> None:
    release = threading.Event()

    class Slow(Journal):
        def _write(self) -> None:
            release.wait(5)
            super()._write()

    journal = Slow(tmp_path, start_unix_ms=1, pending_max=2)
    journal.start()
    for now_ms in range(5):
        journal.append(now_ms, ev.Ticked())
    release.set()
    journal.stop()
    with pytest.raises(ConfigError, match="lost 3"):
        list(read_entries(tmp_path))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file"):
        Journal(tmp_path / "file" / "x", start_unix_ms=1).start()
