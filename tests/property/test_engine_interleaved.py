"""Whatever comes together in a small cache - openings, chunks cut anywhere, decodes, ends, prefixes
that are there already or are not, rewinds, slots that go to who came first, guesses of which some
are wrong - every row's logits are those of its own sequence run alone."""

from dataclasses import dataclass, field, replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from node.engine.batcher import Batcher
from node.engine.runner import Runner
from node.engine.sequence import StepItem
from node.ports import SequenceOpen, StageWork
from plait.prefixes import BLOCK_TOKENS, BlockNamer, reusable_blocks
from plait.types import DType, HeldSpan, KvDtype, RequestId, SamplingParams
from tests.unit.engine.kit import CPU, ids_item, make_runner, make_sequence, run_rows, tiny_model

NUM_BLOCKS = 7
NEW_TOKENS = 12
ROWS = 40
KINDS = ("llama", "mistral", "gemma2")
ATOL = {KvDtype.NATIVE: 1e-4, KvDtype.INT8: 2e-2}
"""Of codes: a number in the middle between two may fall on either, as sums differ in the last
bit."""
_model = cache(tiny_model)


@cache
def _runner(kind: str, kv_dtype: KvDtype) -> Runner:
    model, device = _model(kind), replace(CPU, kv_dtype=kv_dtype)
    return make_runner(model, model.spec.whole, num_slots=NUM_BLOCKS * BLOCK_TOKENS, device=device)


@cache
def _expected(kind: str, kv_dtype: KvDtype, ids: tuple[int, ...]) -> torch.Tensor:
    """By transformers; of codes, by an engine of the same that nobody else is in."""
    model = _model(kind)
    if kv_dtype is KvDtype.NATIVE:
        return model.logits(list(ids))
    whole = model.spec.whole
    runner = make_runner(
        model, whole, num_slots=len(ids) + BLOCK_TOKENS, device=replace(CPU, kv_dtype=kv_dtype)
    )
    alone = make_sequence(whole, runs=((0, len(ids) + BLOCK_TOKENS),))
    with torch.inference_mode():
        return runner.stage.logits(run_rows(runner, [ids_item(alone, 0, list(ids))])[0])


@dataclass
class Story:
    """One request: its prompt, what a greedy draw will add, and how far it is."""

    name: str
    ids: tuple[int, ...]
    prompt_tokens: int
    chunk: int
    epoch: int = 0
    is_open: bool = False
    num_done: int = 0
    start: int = 0
    has_drawn: bool = False
    sent: int = 0
    names: tuple[bytes, ...] = field(default=())
    guesses: tuple[tuple[int, int], ...] = ()
    num_right: int = 0
    num_guessing: int = 0

    def next_guess(self) -> tuple[int, int]:
        """How many guesses the next row has, and how many of them are right."""
        if not self.guesses:
            return 0, 0
        self.num_guessing += 1
        count, right = self.guesses[self.num_guessing % len(self.guesses)]
        count = min(count, len(self.ids) - self.sent - 1)
        return count, min(count, right)


class Driver:
    """A batcher and a runner, stepped by hand; the books are checked after each step."""

    def __init__(self, kind: str, kv_dtype: KvDtype) -> None:
        self.kind = kind
        self.kv_dtype = kv_dtype
        self.runner = _runner(kind, kv_dtype)
        spec = _model(kind).spec
        self.batcher = Batcher(step_tokens_max=ROWS, queue_tokens_max=4096)
        self.batcher.hold(
            spec,
            HeldSpan(
                model_id=spec.model_id,
                span=spec.whole,
                allocation_epoch=1,
                digest="",
                weight_bytes=0,
                read_bytes=0,
                kv_tokens_max=NUM_BLOCKS * BLOCK_TOKENS,
            ),
        )
        self.stories: dict[str, Story] = {}
        self.num_preempted = 0
        self.num_cached = 0
        self.num_rewinds = 0
        self.num_right = 0
        self.num_wrong = 0

    def open(self, story: Story, admission: int) -> None:
        """Open, or open anew with all that was generated so far as the prompt."""
        story.epoch += 1
        story.is_open, story.has_drawn = True, False
        prompt = story.ids[: max(story.prompt_tokens, story.num_done)]
        story.names = BlockNamer(b"salt").push(prompt)
        story.sent = self.batcher.open(
            SequenceOpen(
                request_id=RequestId(story.name),
                epoch=story.epoch,
                span=_model(self.kind).spec.whole,
                kv_tokens=len(story.ids),
                wire_dtype=DType.FLOAT32,
                prefix=story.names,
                cached_blocks=min(len(story.names), reusable_blocks(len(prompt))),
                admission=admission,
                sampling=SamplingParams(temperature=0.0),
            )
        )
        story.start = story.sent
        self.num_cached += story.start
        while story.sent < len(prompt):
            self._submit(story, min(story.chunk, len(prompt) - story.sent), len(prompt))
        self.stories[story.name] = story

    def _submit(self, story: Story, count: int, prompt_end: int) -> None:
        end = story.sent + count
        work = StageWork(
            RequestId(story.name),
            story.epoch,
            story.sent,
            count,
            token_ids=story.ids[story.sent : end],
            sample=end >= prompt_end,
        )
        assert self.batcher.submit(work)
        story.sent = end

    def _decode(self, story: Story) -> None:
        """The next row, and guesses behind it: first those that are right, then wrong ones."""
        count, story.num_right = story.next_guess()
        self.num_right += story.num_right
        self.num_wrong += count - story.num_right
        begin, end = story.sent, story.sent + 1 + count
        ids = [
            token if at <= story.num_right else (token + 1) % 97
            for at, token in enumerate(story.ids[begin:end])
        ]
        block = (begin + 1) // BLOCK_TOKENS
        names = BlockNamer(b"salt").push(story.ids[: begin + 1])
        work = StageWork(
            RequestId(story.name),
            story.epoch,
            begin,
            1 + count,
            token_ids=ids,
            sample=True,
            block_name=names[-1] if block > len(story.names) else None,
            drafted_ids=tuple(ids[1:]),
        )
        if block > len(story.names):
            story.names = names
        assert self.batcher.submit(work)
        story.sent = begin + 1 + story.num_right

    def rewind(self, story: Story) -> None:
        """As where a later stage has no more than one block of the prompt."""
        prompt_end = max(story.prompt_tokens, story.num_done)
        is_prompt = story.sent == prompt_end and not story.has_drawn
        if story.is_open and is_prompt and story.start > BLOCK_TOKENS:
            self.num_rewinds += 1
            story.start = BLOCK_TOKENS
            self.batcher.rewind(RequestId(story.name), story.epoch, BLOCK_TOKENS)
            story.sent = BLOCK_TOKENS
            while story.sent < prompt_end:
                self._submit(story, min(story.chunk, prompt_end - story.sent), prompt_end)

    def close(self, story: Story) -> None:
        if story.is_open:
            self.batcher.close(RequestId(story.name), story.epoch)
            story.is_open = False

    def step(self, prompt_rows_max: int | None) -> None:
        """One step: its rows are compared, its preempted are started anew."""
        items = self.batcher.take(prompt_rows_max)
        rows = run_rows(self.runner, items) if items else []
        for item, computed in zip(items, rows, strict=True):
            self._compare(item, computed)
        self.batcher.finished(items, [True] * len(items))
        for item in items:
            self._go_on(self.stories[item.work.request_id], item)
        for sequence in self.batcher.preempted():
            self.num_preempted += 1
            self.open(self.stories[sequence.opened.request_id], sequence.opened.admission)
        self.batcher.check()

    def _compare(self, item: StepItem, computed: torch.Tensor) -> None:
        story, begin = self.stories[item.work.request_id], item.work.position
        with torch.inference_mode():
            logits = self.runner.stage.logits(computed)
        if item.work.drafted_ids:
            logits = logits[: 1 + story.num_right]
        expected = _expected(self.kind, self.kv_dtype, story.ids)[begin : begin + len(logits)]
        torch.testing.assert_close(logits, expected, atol=ATOL[self.kv_dtype], rtol=0)

    def _go_on(self, story: Story, item: StepItem) -> None:
        if not (story.is_open and item.is_wanted and item.work.sample):
            return
        story.has_drawn = True
        story.num_done = item.work.position + item.work.num_tokens
        if item.work.drafted_ids:
            story.num_done += story.num_right - len(item.work.drafted_ids)
        if story.num_done == len(story.ids):
            self.close(story)
        elif story.sent == story.num_done:
            self._decode(story)


_actions = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 2), st.integers(1, 60), st.integers(3, 40)),
        st.tuples(st.just("step"), st.sampled_from([None, 0, 5, 16])),
        st.tuples(st.just("close"), st.integers(0, 9)),
        st.tuples(st.just("rewind"), st.integers(0, 9)),
    ),
    max_size=24,
)


_guesses = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4).map(tuple)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    kv_dtype=st.sampled_from(KvDtype),
    actions=_actions,
    guesses=_guesses,
)
def test_nobody_notices_who_else_is_there(
    kind: str,
    kv_dtype: KvDtype,
    actions: list[tuple[object, ...]],
    guesses: tuple[tuple[int, int], ...],
) -> None:
    _play(kind, kv_dtype, actions, guesses)


def _play(
    kind: str,
    kv_dtype: KvDtype,
    actions: list[tuple[object, ...]],
    guesses: tuple[tuple[int, int], ...] = (),
) -> Driver:
    driver = Driver(kind, kv_dtype)
    opened: list[Story] = []
    for action in actions:
        if action[0] == "open":
            _, family, length, chunk = action
            assert isinstance(family, int) and isinstance(length, int) and isinstance(chunk, int)
            ids = tuple((5 * i + 11 * family) % 97 for i in range(length + NEW_TOKENS))
            opened.append(Story(f"r{len(opened)}", ids, length, chunk, guesses=guesses))
            driver.open(opened[-1], len(opened))
        elif action[0] == "step":
            rows = action[1]
            assert rows is None or isinstance(rows, int)
            driver.step(rows)
        elif opened:
            story = opened[int(str(action[1])) % len(opened)]
            driver.close(story) if action[0] == "close" else driver.rewind(story)
    for _ in range(2_000):
        if not any(story.is_open for story in opened):
            break
        driver.step(None)
    assert not any(story.is_open for story in opened), "a request never ended"
    assert driver.batcher.kv_tokens_used == 0
    return driver


@pytest.mark.parametrize("kv_dtype", KvDtype)
def test_a_demand_of_twice_the_cache_is_met_and_prefixes_are_found(kv_dtype: KvDtype) -> None:
    """Not left to chance: what the random stories are about does happen."""
    opens: list[tuple[object, ...]] = [("open", number % 3, 50, 13) for number in range(4)]
    steps: list[tuple[object, ...]] = [("step", 16)] * 6
    rewinds: list[tuple[object, ...]] = [("rewind", number) for number in range(8)]
    driver = _play("llama", kv_dtype, [*opens, *steps, *opens, *rewinds], ((3, 1), (2, 2)))
    assert driver.num_preempted > 0 and driver.num_cached > 0 and driver.num_rewinds > 0
    assert driver.num_right > 0 and driver.num_wrong > 0
