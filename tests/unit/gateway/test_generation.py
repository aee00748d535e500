"""One generation: what its readers are told, token by token."""

from collections.abc import Sequence

from coordinator.gateway.generation import NOTICES_MAX, QUEUE_NOTICES_MAX, Generation
from coordinator.gateway.happenings import Delta, Finished, GeneratedToken, Routed
from plait.clock import ManualClock
from plait.errors import UnavailableError
from plait.types import FinishReason, ModelId, Reason, RequestId, SamplingParams
from tests.kit.scripted_network import EOS_ID, ROUTE, ByteTokenizer

CLOCK = ManualClock()


def generation(*, stop: Sequence[str] = (), max_new_tokens: int = 100) -> Generation:
    return Generation(
        request_id=RequestId("r"),
        model_id=ModelId("tiny"),
        key_id="k",
        prompt_ids=[1, 2, 3],
        max_new_tokens=max_new_tokens,
        sampling=SamplingParams(),
        stop=stop,
        stop_token_ids=(EOS_ID,),
        vocab_size=257,
        tokenizer=ByteTokenizer(),
        clock=CLOCK,
    )


def feed(one: Generation, content: bytes) -> FinishReason | None:
    ended = None
    for byte in content:
        ended = one.on_token(GeneratedToken(token_id=byte), None)
        if ended is not None:
            break
    return ended


def deltas(one: Generation) -> list[Delta]:
    return [happening for happening in one.history if isinstance(happening, Delta)]


def told_ids(one: Generation) -> list[int]:
    return [token.token_id for delta in deltas(one) for token in delta.tokens]


def test_the_chain_of_the_first_token_says_how_much_of_the_prompt_was_cached() -> None:
    one = generation(max_new_tokens=2)
    one.on_routed(1, ROUTE, 1)
    assert one.cached_tokens == 1
    one.on_routed(2, ROUTE, 900)
    assert one.cached_tokens == 3, "no more than the prompt has, whatever a node says"
    one.on_routed(3, ROUTE, 2)
    feed(one, b"a")
    one.on_routed(4, ROUTE, 0)  # reads the prompt again because the third one broke
    feed(one, b"b")
    assert one.finished is not None
    assert one.finished.cached_tokens == 2
    told = [each.cached_tokens for each in one.history if isinstance(each, Routed)]
    assert told == [1, 3, 2, 2]


def test_tokens_of_a_split_character_are_told_at_once_and_its_text_when_whole() -> None:
    one = generation()
    feed(one, "é".encode())
    assert [(delta.text, len(delta.tokens)) for delta in deltas(one)] == [("", 1), ("é", 1)]


def test_a_stop_string_hides_its_own_tokens_but_counts_them() -> None:
    one = generation(stop=["END"])
    assert feed(one, b"ab END") is FinishReason.STOP
    assert "".join(delta.text for delta in deltas(one)) == "ab "
    assert told_ids(one) == list(b"ab ")
    assert one.finished is not None
    assert one.finished.completion_tokens == 6


def test_tokens_held_back_for_a_stop_come_out_when_it_was_none() -> None:
    one = generation(stop=["END"])
    feed(one, b"aEN")
    assert told_ids(one) == list(b"a")
    feed(one, b"x")
    assert told_ids(one) == list(b"aENx")
    assert "".join(delta.text for delta in deltas(one)) == "aENx"


def test_what_is_held_back_comes_out_at_the_end() -> None:
    one = generation(stop=["END"])
    feed(one, b"aEN\xf0")
    ended = one.on_token(GeneratedToken(token_id=EOS_ID, is_stop=True), None)
    assert ended is FinishReason.STOP
    assert "".join(delta.text for delta in deltas(one)) == "aEN\ufffd"
    assert told_ids(one) == [*b"aEN\xf0", EOS_ID]


def test_a_stop_that_the_last_byte_completes_beats_the_length() -> None:
    one = generation(stop=["b\ufffd"], max_new_tokens=3)
    assert feed(one, b"ab\xf0") is FinishReason.STOP
    assert "".join(delta.text for delta in deltas(one)) == "a"


def test_the_token_limit_is_ours_even_if_the_stage_forgets_it() -> None:
    one = generation(max_new_tokens=3)
    assert feed(one, b"abcd") is FinishReason.LENGTH
    assert one.generated_ids == list(b"abc")


def test_figures_are_measured_from_submission() -> None:
    one = generation()
    CLOCK.advance(40)
    feed(one, b"a")
    CLOCK.advance(10)
    one.on_token(GeneratedToken(token_id=98), FinishReason.LENGTH)
    end = one.history[-1]
    assert isinstance(end, Finished)
    assert (end.ttft_ms, end.total_ms) == (40, 50)
    assert (end.prompt_tokens, end.completion_tokens) == (3, 2)


def test_after_the_end_nothing_is_told() -> None:
    one = generation()
    error = UnavailableError("gone")
    one.on_ended(FinishReason.ERROR, error)
    length = len(one.history)
    one.on_ended(FinishReason.STOP, None)
    one.on_routed(2, ROUTE)
    one.on_queued(1, Reason(code="x", message="y"))
    assert one.on_token(GeneratedToken(token_id=97), None) is FinishReason.ERROR
    assert len(one.history) == length
    assert one.generated_ids == []


def test_notices_are_bounded_and_a_long_wait_leaves_room_for_routes() -> None:
    one = generation()
    for position in range(1000):
        one.on_queued(position, Reason(code="x", message="y"))
    assert len(one.history) == QUEUE_NOTICES_MAX
    for epoch in range(1, 1000):
        one.on_routed(epoch, ROUTE)
    assert len(one.history) == NOTICES_MAX
