"""Grammars over a small vocabulary: what may come next, resumption, faults, and the batch."""

import json
import threading
from collections.abc import Callable

import pytest
import torch

from node.engine.grammar import (
    GRAMMAR_FAULT,
    REPLAY_FAULT,
    Grammar,
    GrammarCompiler,
    Masks,
    mask_words,
)
from node.engine.grammar_thread import GrammarThread
from node.engine.sampler import Drawn, SequenceSampler, draw_rows
from plait.errors import InvalidRequestError, ModelError, OverloadedError, PlaitError, ServiceError
from plait.models.vocabulary import Vocabulary
from plait.types import Constraint, ConstraintKind, Reason, SamplingParams

EOS = 256
CALL = 257
WORDS = [b"true", b'{"', b'":', b"12", b"ab"]
VOCABULARY = Vocabulary(
    (*(bytes([byte]) for byte in range(256)), b"", b"", *WORDS), {EOS: "<end>", CALL: "[CALL]"}
)
VOCAB_SIZE = 270  # a model's table may have more rows than its tokenizer has tokens


def compiler() -> GrammarCompiler:
    return GrammarCompiler(VOCABULARY, vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,))


def schema(content: object) -> Constraint:
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(content))


def regex(pattern: str) -> Constraint:
    return Constraint(ConstraintKind.REGEX, pattern)


PAIR = schema(
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "ok": {"type": "boolean"}},
        "required": ["a", "ok"],
        "additionalProperties": False,
    }
)


def allowed(grammar: Grammar) -> set[int]:
    scores = torch.zeros(1, VOCAB_SIZE)
    bits = torch.empty((1, mask_words(VOCAB_SIZE)), dtype=torch.int32)
    grammar.fill(bits[0])
    Masks().forbid(scores, [0], bits)
    return set(torch.isfinite(scores[0]).nonzero().flatten().tolist())


def read(constraint: Constraint, text: bytes) -> Grammar:
    grammar = compiler().grammar(constraint, [])
    for byte in text:
        assert byte in allowed(grammar)
        grammar.accept(byte)
    return grammar


def generate(sampler: SequenceSampler, *, seed: int = 0, at: int = 0, num_max: int = 200) -> bytes:
    """Draw with random logits until the end; the same position has the same logits."""
    text = b""
    for position in range(at, num_max):
        row = torch.randn(
            VOCAB_SIZE, generator=torch.Generator().manual_seed(seed * 999 + position)
        )
        drawn = sampler.draw(row, position)
        if drawn.token_id == EOS:
            return text
        text += VOCABULARY.pieces[drawn.token_id]
    return text


def test_tokens_of_every_spelling_are_allowed_and_nothing_else() -> None:
    grammar = read(PAIR, b"{")
    assert allowed(grammar) == {ord('"'), ord(" "), ord("\n")}
    assert WORDS.index(b'{"') + 258 in allowed(read(PAIR, b""))
    assert allowed(read(PAIR, b'{"a": 1')) >= {ord("2"), ord(","), WORDS.index(b"12") + 258}


def test_the_end_is_allowed_where_the_grammar_is_satisfied_and_then_alone() -> None:
    assert EOS not in allowed(read(PAIR, b'{"a": 1, "ok": tru'))
    assert allowed(read(PAIR, b'{"a": 1, "ok": true}')) == {EOS}


def test_blanks_come_to_an_end() -> None:
    assert ord(" ") not in allowed(read(PAIR, b"{ "))
    grammar = read(PAIR, b"{\n" + b" " * 32)
    assert allowed(grammar) == {ord('"')}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_what_is_drawn_follows_the_schema(temperature: float) -> None:
    for seed in range(8):
        sampler = SequenceSampler(
            SamplingParams(temperature=temperature, seed=seed, constraint=PAIR)
        )
        sampler.grammar = compiler().grammar(PAIR, [])
        content = json.loads(generate(sampler, seed=seed, num_max=2000))
        assert set(content) == {"a", "ok"} and isinstance(content["ok"], bool)


def test_a_resumed_request_goes_on_where_its_grammar_was() -> None:
    params = SamplingParams(seed=3, constraint=PAIR, presence_penalty=0.3)
    whole = SequenceSampler(params)
    whole.grammar = compiler().grammar(PAIR, [])
    expected = generate(whole)
    ids = whole.generated_ids[:-1]
    for cut in (1, len(ids) // 2, len(ids)):
        resumed = SequenceSampler(params, generated_ids=ids[:cut])
        resumed.grammar = compiler().grammar(PAIR, ids[:cut])
        rest = generate(resumed, at=cut)
        assert b"".join(VOCABULARY.pieces[i] for i in ids[:cut]) + rest == expected


def test_a_history_that_breaks_the_grammar_is_this_nodes_trouble() -> None:
    with pytest.raises(ServiceError) as caught:
        compiler().grammar(PAIR, [ord("x")])
    assert caught.value.code == REPLAY_FAULT


def test_regular_expressions_and_grammars() -> None:
    assert allowed(read(regex("(yes|no)/\n?"), b"ye")) == {ord("s")}
    assert allowed(read(regex("a/b"), b"a/")) == {ord("b")}
    assert allowed(read(regex("a\\/b"), b"a")) == {ord("/")}
    grammar = Constraint(ConstraintKind.GRAMMAR, 'start: "x"+ "ab"')
    assert allowed(read(grammar, b"x")) == {ord("x"), ord("a"), WORDS.index(b"ab") + 258}


def test_special_tokens_have_names() -> None:
    grammar = Constraint(ConstraintKind.GRAMMAR, "start: <[257]> /[0-9]/")
    assert allowed(compiler().grammar(grammar, [])) == {CALL}


@pytest.mark.parametrize(
    "constraint",
    [
        schema({"type": "nonsense"}),
        schema([1]),
        regex("(["),
        Constraint(ConstraintKind.JSON_SCHEMA, "{"),
        Constraint(ConstraintKind.JSON_SCHEMA, "[" * 100_000),
        Constraint(ConstraintKind.GRAMMAR, "start: nothing"),
    ],
)
def test_what_does_not_compile_is_the_requests_fault(constraint: Constraint) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        compiler().grammar(constraint, [])
    assert caught.value.code == GRAMMAR_FAULT


def test_a_row_whose_grammar_fails_leaves_the_others_alone() -> None:
    greedy = SamplingParams(temperature=0.0, constraint=PAIR)
    broken, whole = SequenceSampler(greedy), SequenceSampler(greedy)
    broken.grammar = compiler().grammar(PAIR, [])
    whole.grammar = compiler().grammar(PAIR, [])
    with pytest.raises(InvalidRequestError):
        broken.grammar.accept(ord("x"))
    free = SequenceSampler(SamplingParams(temperature=0.0))
    rows = torch.randn(3, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    first, second, third = draw_rows(rows, [free, broken, whole], [0, 0, 0])
    assert first == Drawn(int(rows[0].argmax()), None, ())
    assert isinstance(second, Reason) and second.code == GRAMMAR_FAULT
    assert isinstance(third, Drawn) and VOCABULARY.pieces[third.token_id].startswith(b"{")


def test_the_models_own_scores_are_told_beside_a_constraint() -> None:
    sampler = SequenceSampler(SamplingParams(temperature=0.0, top_logprobs=2, constraint=PAIR))
    sampler.grammar = compiler().grammar(PAIR, [])
    row = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(4))
    drawn = sampler.draw(row, 0)
    logprobs = torch.log_softmax(row, dim=-1)
    assert drawn.logprob == pytest.approx(float(logprobs[drawn.token_id]))
    assert [top.token_id for top in drawn.top_logprobs] == logprobs.topk(2).indices.tolist()


class Story:
    """A thread of grammars and what it told."""

    def __init__(self, make: Callable[[], GrammarCompiler] = compiler) -> None:
        self.grammars = GrammarThread(make)
        self.errors: list[PlaitError | None] = []
        self.told = threading.Semaphore(0)

    def done(self, error: PlaitError | None) -> None:
        self.errors.append(error)
        self.told.release()

    def ask(self, sampler: SequenceSampler) -> PlaitError | None:
        self.grammars.ask(sampler, self.done)
        assert self.told.acquire(timeout=30)
        return self.errors[-1]


def test_the_thread_reads_the_vocabulary_once_and_gives_grammars() -> None:
    made: list[int] = []

    def make() -> GrammarCompiler:
        made.append(1)
        return compiler()

    story = Story(make)
    for _ in range(3):
        sampler = SequenceSampler(SamplingParams(constraint=PAIR))
        assert not sampler.is_ready
        assert story.ask(sampler) is None
        assert sampler.is_ready
    assert made == [1]
    error = story.ask(SequenceSampler(SamplingParams(constraint=regex("("))))
    assert error is not None and error.code == GRAMMAR_FAULT
    story.grammars.close()


def test_a_model_without_a_vocabulary_fails_the_request_alone() -> None:
    def make() -> GrammarCompiler:
        raise ModelError("no tokenizer here", reason="model_no_tokenizer")

    story = Story(make)
    error = story.ask(SequenceSampler(SamplingParams(constraint=PAIR)))
    assert error is not None and error.code == "model_no_tokenizer"
    story.grammars.close()


def test_the_threads_queue_is_bounded() -> None:
    held, entered = threading.Event(), threading.Event()

    def make() -> GrammarCompiler:
        entered.set()
        assert held.wait(30)
        return compiler()

    story = Story(make)
    story.grammars.ask(SequenceSampler(SamplingParams(constraint=PAIR)), story.done)
    assert entered.wait(30)
    with pytest.raises(OverloadedError):
        for _ in range(300):
            story.grammars.ask(SequenceSampler(SamplingParams(constraint=PAIR)), story.done)
    story.grammars.close()
    held.set()
