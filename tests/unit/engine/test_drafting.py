"""A draft model in its thread: it draws as the served model does, and only in its vocabulary."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from node.agent.weights import open_weights
from node.config import NodeConfig
from node.core.events import Drafted, DraftModelChanged
from node.drafter import RefusedDrafts, open_drafter
from node.engine.device import pick_device
from node.engine.drafting import Drafter, drawing
from node.engine.drafting_model import DraftModel, load_draft_model, vocabulary_hash
from plait.errors import ModelError, OverloadedError
from plait.models import load_spec, resolve
from plait.models.vocabulary import Vocabulary
from plait.types import Constraint, ConstraintKind, DraftState, DType, RequestId, SamplingParams
from tests.kit.tiny_model import write_tiny_model
from tests.unit.engine.test_drafting_book import order

CPU = pick_device("cpu", DType.FLOAT32)
PROMPT = tuple(b"Hello wide world")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafts") / "tiny"
    write_tiny_model(folder)
    return folder


def loaded(folder: Path, *, memory_bytes: int | None = None) -> DraftModel:
    return load_draft_model(str(folder), CPU, open_weights, memory_bytes=memory_bytes)


class Heard:
    """A sink."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Drafted | DraftModelChanged] = asyncio.Queue()

    async def next(self) -> Drafted | DraftModelChanged:
        async with asyncio.timeout(30):
            return await self.answers.get()

    async def guesses(self) -> Drafted:
        answer = await self.next()
        assert isinstance(answer, Drafted)
        return answer


@pytest_asyncio.fixture
async def running(folder: Path) -> AsyncIterator[tuple[Drafter, Heard]]:
    drafter, heard = Drafter(loaded(folder), num_threads=1), Heard()
    drafter.start(heard.answers.put_nowait)
    yield drafter, heard
    await drafter.stop()
    await drafter.stop()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_it_draws_the_same_however_it_is_asked(
    running: tuple[Drafter, Heard], temperature: float
) -> None:
    """In one piece, token by token, and after wrong turns."""
    drafter, heard = running
    sampling = SamplingParams(temperature=temperature, seed=4)
    whole = replace(order(0, *PROMPT, count=8), sampling=sampling)
    drafter.order(whole)
    expected = (await heard.guesses()).token_ids
    assert len(expected) == 8
    drafter.order(replace(whole, request_id=RequestId("b"), count=1))
    for at in range(7):
        answer = await heard.guesses()
        assert answer.token_ids == expected[at : at + 1] and answer.step_ms >= 0.0
        drafter.order(replace(order(16 + at, expected[at], count=1, name="b"), sampling=sampling))
    await heard.next()
    drafter.order(replace(whole, request_id=RequestId("c"), token_ids=PROMPT[:9]))
    await heard.next()
    drafter.order(replace(order(9, *PROMPT[9:], count=8, name="c"), sampling=sampling))
    assert (await heard.guesses()).token_ids == expected


async def test_what_ends_frees_its_slots_and_is_not_answered(
    running: tuple[Drafter, Heard],
) -> None:
    drafter, heard = running
    drafter.order(order(0, *PROMPT))
    await heard.next()
    drafter.close(RequestId("a"), 1)
    drafter.order(order(16, 1))
    assert (await heard.guesses()).token_ids == (), "it is gone, and so is its beginning"
    assert (drafter.book.num_sequences, drafter.book.blocks_used) == (0, 0)


async def test_a_thread_that_dies_says_so_once_and_answers_with_nothing(folder: Path) -> None:
    def broken_clock() -> int:
        raise ZeroDivisionError("no time")

    drafter, heard = Drafter(loaded(folder), num_threads=1, now_ns=broken_clock), Heard()
    drafter.start(heard.answers.put_nowait)
    drafter.order(order(0, *PROMPT))
    lost = await heard.next()
    assert isinstance(lost, DraftModelChanged) and lost.state is DraftState.LOST
    assert "no time" in lost.why
    drafter.order(order(0, *PROMPT, name="b"))
    drafter.close(RequestId("a"), 1)
    answer = await heard.next()
    assert isinstance(answer, Drafted) and (answer.request_id, answer.token_ids) == ("b", ())
    assert (drafter.book.num_sequences, drafter.book.blocks_used) == (0, 0)
    await drafter.stop()
    assert heard.answers.empty()


async def test_only_a_model_of_its_vocabulary_is_guessed_for(
    running: tuple[Drafter, Heard], folder: Path, tmp_path: Path
) -> None:
    drafter, _ = running
    own = resolve(str(folder))
    assert await drafter.check(load_spec(own), own) is None
    other = tmp_path / "other"
    spec = write_tiny_model(other)
    tokenizer = other / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"<eos>"', '"<end>"'))
    refusal = await drafter.check(spec, resolve(str(other)))
    assert refusal is not None and refusal.code == "draft_vocabulary_differs"
    assert "same family" in refusal.message
    tokenizer.unlink()
    refusal = await drafter.check(spec, resolve(str(other)))
    assert refusal is not None and refusal.code == "draft_vocabulary_unknown"


async def test_a_node_without_the_memory_serves_without_guesses_and_says_so(folder: Path) -> None:
    config = NodeConfig(home=folder, draft_model=str(folder))
    drafter, left = await open_drafter(config, CPU, open_weights, 4 << 20, lambda _: None)
    assert isinstance(drafter, RefusedDrafts) and left == 4 << 20
    heard = Heard()
    drafter.start(heard.answers.put_nowait)
    told = await heard.next()
    assert isinstance(told, DraftModelChanged) and told.state is DraftState.REFUSED
    assert told.is_final and "may take three quarters" in told.why
    with pytest.raises(ModelError):
        absent = NodeConfig(home=folder, draft_model=str(folder / "absent"))
        await open_drafter(absent, CPU, open_weights, 4 << 20, lambda _: None)


def test_a_model_that_takes_too_much_or_says_no_words_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(OverloadedError, match=r"--draft-model .* may take three quarters"):
        loaded(folder, memory_bytes=4 << 20)
    write_tiny_model(tmp_path / "mute")
    (tmp_path / "mute" / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="--draft-model"):
        loaded(tmp_path / "mute")


def test_its_memory_is_counted(folder: Path) -> None:
    model = loaded(folder, memory_bytes=60 << 20)
    spec = load_spec(resolve(str(folder)))
    slots = model.num_slots * spec.kv_bytes_per_token(4, DType.FLOAT32)
    assert slots < model.memory_bytes <= 45 << 20
    model.close()


def test_vocabularies_are_alike_where_each_id_stands_for_the_same() -> None:
    plain = Vocabulary((b"a", b"b", b""), {2: "<end>"})
    padded = Vocabulary((b"a", b"b", b"", b"", b""), {2: "<end>"})
    assert vocabulary_hash(plain) == vocabulary_hash(padded)
    for other in (
        Vocabulary((b"b", b"a", b""), {2: "<end>"}),
        Vocabulary((b"a", b"b", b""), {2: "<stop>"}),
        Vocabulary((b"a", b"b", b"<end>"), {}),
        Vocabulary((b"ab", b"", b""), {2: "<end>"}),
        Vocabulary((b"a", b"b", b"", b"c"), {2: "<end>"}),
    ):
        assert vocabulary_hash(other) != vocabulary_hash(plain)


def test_guesses_are_drawn_with_the_requests_number_and_by_no_history() -> None:
    asked = SamplingParams(
        temperature=0.7,
        seed=5,
        top_k=9,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        presence_penalty=0.3,
        top_logprobs=3,
        constraint=Constraint(ConstraintKind.REGEX, "a*"),
    )
    assert drawing(asked) == SamplingParams(temperature=0.7, seed=5, top_k=9)
