"""An open request on this stage, as the engine sees it."""

from collections.abc import Hashable

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
    """What was opened, how far it was submitted, and its sampler on the last stage.

    `next_position` is where the next submitted work must start. `is_open` turns False for good when
    the sequence is closed; results of a step that was then under way are dropped. `has_run` says
    that a step took it, so that it may have a place in the KV pool. `group` is its last step's,
    `num_queued` counts its works that wait.
    """

    __slots__ = (
        "group",
        "has_run",
        "is_open",
        "key",
        "next_position",
        "num_queued",
        "opened",
        "sampler",
    )

    def __init__(self, opened: SequenceOpen) -> None:
        self.opened = opened
        self.key: Hashable = (opened.request_id, opened.epoch)
        self.next_position = 0
        self.is_open = True
        self.has_run = False
        self.num_queued = 0
        self.group: StepGroup | None = None
        self.sampler: SequenceSampler | None = None
        if opened.sampling is not None:
            self.sampler = SequenceSampler(
                opened.sampling, opened.penalty_prompt_ids, opened.penalty_generated_ids
            )


class StepItem:
    """One work of one sequence in a step."""

    __slots__ = ("sequence", "work")

    def __init__(self, sequence: Sequence, work: StageWork) -> None:
        self.sequence = sequence
        self.work = work
