"""The generator: room, retention, one encoding per prompt, and the core's words as errors."""

import asyncio

import pytest

from coordinator.core import events as ev
from coordinator.gateway.catalogue import Catalogue
from coordinator.gateway.generate import GenerateLimits, Generator
from coordinator.gateway.order import Order, RawPrompt
from coordinator.gateway.refusals import error_for
from coordinator.gateway.relay import Relay
from coordinator.gateway.tokens import TokenizerRegistry
from plait.clock import ManualClock
from plait.errors import (
    DeadlineError,
    InvalidRequestError,
    ModelError,
    OverloadedError,
    PlaitError,
    ServiceError,
    UnavailableError,
)
from plait.types import FinishReason, Reason
from tests.kit.scripted_network import ByteTokenizer, ScriptedNetwork, tiny_spec


class CountingTokenizer(ByteTokenizer):
    """Counts encodings."""

    num_encoded = 0

    def encode(self, text: str, *, with_special: bool) -> list[int]:
        self.num_encoded += 1
        return super().encode(text, with_special=with_special)


class Rig:
    def __init__(self, limits: GenerateLimits | None = None) -> None:
        self.network = ScriptedNetwork(is_holding=True)
        self.clock = ManualClock()
        self.tokenizer = CountingTokenizer()
        self.relay = Relay(
            inbox=self.network,
            sign=lambda payload: payload[:1],
            network_id="net",
            clock=self.clock,
            new_id=self.new_id,
        )
        self.network.relay = self.relay
        self.num_ids = 0
        spec = tiny_spec()
        self.generator = Generator(
            relay=self.relay,
            inbox=self.network,
            catalogue=Catalogue([spec]),
            tokenizers=TokenizerRegistry({spec.model_id: self.tokenizer}),
            clock=self.clock,
            new_id=self.new_id,
            limits=limits if limits is not None else GenerateLimits(),
        )

    def new_id(self) -> str:
        self.num_ids += 1
        return f"id{self.num_ids}"


def order(text: str = "hi", *, name: str = "", max_tokens: int | None = None) -> Order:
    return Order(prompt=RawPrompt(text), request_id=name, max_tokens=max_tokens)


async def test_the_default_length_is_bounded_by_the_context() -> None:
    rig = Rig(GenerateLimits(default_max_tokens=100))
    short = await rig.generator.start(order(), key_id="k")
    long = await rig.generator.start(order("x" * 4090), key_id="k")
    assert short.generation.max_new_tokens == 100
    assert long.generation.max_new_tokens == 6
    exact = await rig.generator.start(order("x" * 4090, max_tokens=6), key_id="k")
    assert exact.generation.max_new_tokens == 6
    with pytest.raises(InvalidRequestError, match="room for 6"):
        await rig.generator.start(order("x" * 4090, max_tokens=7), key_id="k")


async def test_a_seed_is_drawn_where_none_is_given() -> None:
    rig = Rig()
    seeds = {
        (await rig.generator.start(order(), key_id="k")).generation.sampling.seed for _ in range(5)
    }
    assert len(seeds) == 5


async def test_there_is_room_for_so_many_and_leaving_makes_room() -> None:
    rig = Rig(GenerateLimits(generations_max=2))
    readers = [await rig.generator.start(order(), key_id="k") for _ in range(2)]
    with pytest.raises(OverloadedError):
        await rig.generator.start(order(), key_id="k")
    readers[0].close()
    readers[0].close()
    assert len(rig.network.of(ev.RequestCancelled)) == 1
    await rig.generator.start(order(), key_id="k")


async def test_a_full_inbox_leaves_nothing_behind() -> None:
    rig = Rig()
    rig.network.is_full = True
    with pytest.raises(OverloadedError):
        await rig.generator.start(order(name="mine"), key_id="k")
    assert rig.relay.num_generations == rig.generator.num_running == 0
    rig.network.is_full = False
    await rig.generator.start(order(name="mine"), key_id="k")


async def test_a_name_is_kept_for_a_minute_and_belongs_to_its_key() -> None:
    rig = Rig(GenerateLimits(retain_ms=60_000, retained_max=2))
    reader = await rig.generator.start(order(name="mine"), key_id="k")
    reader.generation.on_ended(FinishReason.LENGTH, None)
    reader.close()
    rig.clock.advance(59_999)
    with pytest.raises(InvalidRequestError):
        await rig.generator.start(order(name="mine"), key_id="other")
    with pytest.raises(InvalidRequestError):
        await rig.generator.start(order("else", name="mine"), key_id="k")
    again = await rig.generator.start(order(name="mine"), key_id="k")
    assert again.generation is reader.generation
    assert [type(happening).__name__ async for happening in again] == ["Accepted", "Finished"]
    again.close()
    rig.clock.advance(1)
    fresh = await rig.generator.start(order(name="mine"), key_id="other")
    assert fresh.generation is not reader.generation


async def test_only_so_many_finished_ones_are_kept() -> None:
    rig = Rig(GenerateLimits(retained_max=2))
    for name in ("a", "b", "c"):
        reader = await rig.generator.start(order(name=name), key_id="k")
        reader.generation.on_ended(FinishReason.LENGTH, None)
        reader.close()
        rig.clock.advance(1)
    oldest = await rig.generator.start(order(name="a"), key_id="k")
    newest = await rig.generator.start(order(name="c"), key_id="k")
    assert oldest.generation.finished is None
    assert newest.generation.finished is not None


async def test_the_same_name_twice_at_once_is_one_generation() -> None:
    rig = Rig()
    first, second = await asyncio.gather(
        *(rig.generator.start(order(name="mine"), key_id="k") for _ in range(2))
    )
    assert first.generation is second.generation
    first.close()
    assert rig.generator.num_running == 1
    second.close()
    assert second.generation.finished is not None
    assert second.generation.finished.reason is FinishReason.CANCELLED


async def test_choices_of_one_prompt_share_its_encoding() -> None:
    rig = Rig()
    ids = await rig.generator.encode(order())
    for _ in range(3):
        await rig.generator.start(order(), key_id="k", prompt_ids=ids)
    assert rig.tokenizer.num_encoded == 1


async def test_a_prompt_of_too_many_characters_is_not_even_encoded() -> None:
    rig = Rig(GenerateLimits(prompt_chars_max=10))
    with pytest.raises(InvalidRequestError, match="11 characters"):
        await rig.generator.start(order("x" * 11), key_id="k")
    assert rig.tokenizer.num_encoded == 0


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("queue_full", OverloadedError),
        ("kv_full", OverloadedError),
        ("coordinator_busy", OverloadedError),
        ("span_unavailable", UnavailableError),
        ("hop_lost", UnavailableError),
        ("node_lost", UnavailableError),
        ("deadline_exceeded", DeadlineError),
        ("prefill_timeout", DeadlineError),
        ("context_exceeded", InvalidRequestError),
        ("request_too_large", InvalidRequestError),
        ("invalid_argument", InvalidRequestError),
        ("model_not_found", ModelError),
    ],
)
def test_reasons_of_the_core_are_typed(code: str, kind: type[PlaitError]) -> None:
    error = error_for(Reason(code=code, message="why"))
    assert type(error) is kind
    assert (error.code, error.message) == (code, "why")
    assert type(error_for(None)) is ServiceError
