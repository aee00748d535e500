"""An open request on this stage, as the engine sees it, and its part of a step."""

from collections import deque
from collections.abc import Hashable

from node.engine.blocks import Run
from node.engine.sampler import SequenceSampler
from node.ports import SequenceOpen, StageWork


class StepGroup:
    """Sequences that shared a step. They travel on together, so their next works come together.

    `num_open` of them are open still, `num_ready` of these have work in the queue.
    """

    __slots__ = ("num_open", "num_ready")

    def __init__(self) -> None:
        self.num_open = 0
        self.num_ready = 0


class Sequence:
    """What was opened, how far it was submitted, where its KV lies, and its sampler on the last
    stage.

    `next_position` is where the next submitted work must start, or up to `num_drafted` before: rows
    of the last one that were guesses. `waiting` are works that no step
    has taken, of the first of which `num_cut` rows are taken. `runs` are its slots. `is_open` turns
    False for good when the sequence is closed; results of a step that was then under way are
    dropped. `is_running`: a step that is under way writes to its slots. `is_held`: there was no
    room for its next rows. `num_rewinds` tells works of before a rewind from those after it.
    `seniority` orders sequences by who came first, the same on all stages. `names` are those of its
    blocks' contents, by block; `num_sealed` blocks have been filed under them. `group` is its last
    step's.
    """

    __slots__ = (
        "group",
        "has_decoded",
        "is_held",
        "is_open",
        "is_running",
        "key",
        "names",
        "next_position",
        "num_cut",
        "num_drafted",
        "num_rewinds",
        "num_sealed",
        "opened",
        "runs",
        "sampler",
        "seniority",
        "waiting",
    )

    def __init__(self, opened: SequenceOpen, *, order: int = 0) -> None:
        self.opened = opened
        self.key: Hashable = (opened.request_id, opened.epoch)
        self.seniority = (opened.admission, order)
        self.next_position = 0
        self.num_drafted = 0
        self.waiting: deque[StageWork] = deque()
        self.num_cut = 0
        self.runs: tuple[Run, ...] = ()
        self.is_open = True
        self.is_running = False
        self.is_held = False
        self.has_decoded = False
        self.num_rewinds = 0
        self.num_sealed = 0
        self.names: dict[int, bytes] = {
            index: opened.cache_path + block for index, block in enumerate(opened.prefix)
        }
        self.group: StepGroup | None = None
        self.sampler: SequenceSampler | None = None
        if opened.sampling is not None:
            self.sampler = SequenceSampler(
                opened.sampling, opened.penalty_prompt_ids, opened.penalty_generated_ids
            )

    @property
    def is_ready(self) -> bool:
        """Whether works wait."""
        return bool(self.waiting)

    @property
    def is_at_decode(self) -> bool:
        """Whether the next rows are a single one, and guesses behind it, which cost a step little
        and stay together."""
        return bool(self.waiting) and self.waiting[0].is_decode

    def cut(self, rows_max: int, apart: set[StageWork]) -> StageWork | None:
        """Take at most `rows_max` of the rows that wait as one work: parts of works and several
        works, but none in `apart`, nor anything behind it or behind a row that is sampled; what has
        guesses goes by itself. None where nothing may be taken."""
        parts: list[tuple[StageWork, int, int]] = []
        num_rows = 0
        while self.waiting and num_rows < rows_max:
            work = self.waiting[0]
            if work in apart or (parts and work.drafted_ids):
                break
            begin = self.num_cut
            end = min(work.num_tokens, begin + rows_max - num_rows)
            parts.append((work, begin, end))
            num_rows += end - begin
            self.num_cut = end
            if end == work.num_tokens:
                self.waiting.popleft()
                self.num_cut = 0
                if work.sample:
                    break
        return _joined(parts, num_rows) if parts else None


class StepItem:
    """One work of one sequence in a step, and the slots that the sequence has in it."""

    __slots__ = ("num_rewinds", "runs", "sequence", "work")

    def __init__(self, sequence: Sequence, work: StageWork) -> None:
        self.sequence = sequence
        self.work = work
        self.runs = sequence.runs
        self.num_rewinds = sequence.num_rewinds

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still waits for what a step makes of it."""
        sequence = self.sequence
        return sequence.is_open and sequence.num_rewinds == self.num_rewinds


def _joined(parts: list[tuple[StageWork, int, int]], num_rows: int) -> StageWork:
    """Rows [begin, end) of each, as one work."""
    first, begin, _ = parts[0]
    if len(parts) == 1 and num_rows == first.num_tokens:
        return first
    last, _, last_end = parts[-1]
    joined = StageWork(
        first.request_id,
        first.epoch,
        first.position + begin,
        num_rows,
        dtype=first.dtype,
        sample=last.sample and last_end == last.num_tokens,
    )
    if first.token_ids is not None:
        joined.token_ids = [i for work, a, b in parts for i in (work.token_ids or ())[a:b]]
    else:
        joined.hidden = b"".join(_rows(work, a, b) for work, a, b in parts)
    return joined


def _rows(work: StageWork, begin: int, end: int) -> memoryview:
    whole = memoryview(work.hidden or b"")
    row_bytes = whole.nbytes // work.num_tokens
    return whole[begin * row_bytes : end * row_bytes]
