"""What the core was told and when, in files: any incident replays exactly.

One folder holds segments `<start>-<number>.jsonl`. The first line of a segment is its header, every
other line is [now_ms, event] or, where the writer could not keep up, {"lost": count}.
"""

import json
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, TextIO

from coordinator.core.effects import Effect
from coordinator.core.events import Event
from coordinator.shell.plain import event_from_plain, event_to_plain
from plait.errors import ConfigError
from plait.log import get

FORMAT: Final = 1
Entry = tuple[int, Event]
log = get("journal")


class Journal:
    """Appends from the event loop, writes from a thread of its own.

    At most `pending_max` entries wait for the disk; more are dropped and counted in the file, so
    that a replay knows. At most `segments_max` segments of `segment_bytes` are kept, all starts
    together.
    """

    def __init__(
        self,
        folder: Path,
        *,
        start_unix_ms: int,
        note: str = "",
        segment_bytes: int = 8 << 20,
        segments_max: int = 16,
        pending_max: int = 20_000,
    ) -> None:
        self._folder = folder
        self._start = f"{start_unix_ms:015d}"
        self._note = note
        self._segment_bytes = segment_bytes
        self._segments_max = segments_max
        self._pending: queue.Queue[Entry | None] = queue.Queue(pending_max)
        self._num_lost = 0
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)

    def start(self) -> None:
        """Open the first segment and start the thread. Raises ConfigError: folder not writable."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self._folder / ".probe").touch()
            (self._folder / ".probe").unlink()
        except OSError as error:
            raise ConfigError(f"the journal's folder {self._folder}: {error.strerror}") from error
        self._thread.start()

    def append(self, now_ms: int, event: Event) -> None:
        """Keep one entry; neither blocks nor raises."""
        try:
            self._pending.put_nowait((now_ms, event))
        except queue.Full:
            self._num_lost += 1

    def stop(self, *, timeout_s: float = 5.0) -> None:
        """Write what waits and close the file."""
        if self._thread.is_alive():
            try:
                self._pending.put(None, timeout=timeout_s)
            except queue.Full:
                log.warning("journal_stuck", waiting=self._pending.qsize())
                return
            self._thread.join(timeout_s)

    def _write(self) -> None:
        number = 0
        try:
            while True:
                path = self._folder / f"{self._start}-{number:05d}.jsonl"
                self._prune()
                with path.open("w", encoding="utf-8") as file:
                    header = {"format": FORMAT, "segment": number, "note": self._note}
                    file.write(json.dumps(header) + "\n")
                    if not self._fill(file):
                        return
                number += 1
        except OSError as error:
            log.warning("journal_stopped", error=str(error))
            self._drain()

    def _fill(self, file: TextIO) -> bool:
        """Write entries until the segment is full (True) or the journal stops (False)."""
        written = 0
        while written < self._segment_bytes:
            entry = self._pending.get()
            if entry is None:
                return False
            if self._num_lost:
                num_lost, self._num_lost = self._num_lost, 0
                written += file.write(json.dumps({"lost": num_lost}) + "\n")
            now_ms, event = entry
            written += file.write(json.dumps([now_ms, event_to_plain(event)]) + "\n")
            if self._pending.empty():
                file.flush()
        return True

    def _drain(self) -> None:
        """The disk failed: keep taking entries away so that nothing piles up."""
        while self._pending.get() is not None:
            pass

    def _prune(self) -> None:
        segments = sorted(self._folder.glob("*-*.jsonl"))
        for old in segments[: max(0, len(segments) - self._segments_max + 1)]:
            old.unlink(missing_ok=True)


class ReplayCore(Protocol):
    """What a replay asks of a core."""

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect]: ...


def read_note(path: Path) -> str:
    """What the run that `path` holds was started with, e.g. `seed=7`. Raises ConfigError."""
    first = _segments(path)[0]
    with first.open(encoding="utf-8") as file:
        try:
            return str(json.loads(file.readline())["note"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{first} is not a journal: {error!r}") from error


def read_entries(path: Path) -> Iterator[Entry]:
    """Entries of the run that `path` (one of its segments, or the folder: the newest run) holds.

    Raises ConfigError where the beginning was rotated away, entries were lost, or a line is torn.
    """
    segments = _segments(path)
    for expected, segment in enumerate(segments):
        with segment.open(encoding="utf-8") as file:
            try:
                header = json.loads(file.readline())
                number = header["segment"]
                is_known = header["format"] == FORMAT
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{segment} is not a journal: {error!r}") from error
            if not is_known or number != expected:
                raise ConfigError(
                    f"{segment} begins at segment {number} of format {header['format']}; a replay "
                    f"needs segment {expected} of format {FORMAT}: earlier ones were rotated away"
                )
            is_newest = segment == segments[-1]
            yield from _lines(segment, file, may_be_torn=is_newest)


def _lines(segment: Path, file: TextIO, *, may_be_torn: bool) -> Iterator[Entry]:
    for line in file:
        try:
            entry = json.loads(line)
        except ValueError:
            if may_be_torn and not line.endswith("\n"):
                return
            raise ConfigError(f"{segment} has a torn line") from None
        if isinstance(entry, dict):
            raise ConfigError(f"{segment} lost {entry.get('lost')} entries: no exact replay")
        now_ms, plain = entry
        yield now_ms, event_from_plain(plain)


def replay(
    path: Path,
    core: ReplayCore,
    *,
    watch: Callable[[int, Event, Sequence[Effect]], None] | None = None,
) -> int:
    """Feed a recorded run to a fresh `core`; returns the number of events.

    `watch` sees every (now_ms, event, effects). Raises ConfigError as `read_entries` does.
    """
    count = 0
    for now_ms, event in read_entries(path):
        effects = core.handle(event, now_ms)
        if watch is not None:
            watch(now_ms, event, effects)
        count += 1
    return count


def _segments(path: Path) -> list[Path]:
    folder = path if path.is_dir() else path.parent
    found = sorted(folder.glob("*-*.jsonl"))
    if not found:
        raise ConfigError(f"no journal in {folder}")
    run = (found[-1] if path.is_dir() else path).name.rpartition("-")[0]
    return [segment for segment in found if segment.name.startswith(f"{run}-")]
