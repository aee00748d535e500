"""A model in whole numbers: each layer mixes its input with what it kept of the position before.

What comes out depends on every token so far and on every layer, but not on how layers are spread
over nodes: a row that is lost, doubled, reordered or computed from another request's KV changes
all that follows.
"""

from collections.abc import Sequence

from plait.types import LayerSpan

MASK = (1 << 61) - 1
VOCAB = 251
VALUE_BYTES = 8
States = list[int]
"""What each layer of a span kept of the latest position."""


def embed(token_id: int, position: int) -> int:
    """The first layer's input."""
    return (token_id * 0x9E3779B97F4A7C15 + position * 0xC2B2AE3D27D4EB4F + 1) & MASK


def run_row(span: LayerSpan, value: int, states: States) -> int:
    """One row through the layers of `span`; `states` take in what they keep of it."""
    for at, layer in enumerate(range(span.start, span.end)):
        value = (value * 6364136223846793005 + states[at] * 1442695040888963407 + layer) & MASK
        value ^= value >> 29
        states[at] = value
    return value


def draw(value: int) -> int:
    """The token that the last layer's output stands for."""
    return (value >> 17) % VOCAB


def answer(prompt: Sequence[int], num_tokens: int, num_layers: int) -> tuple[int, ...]:
    """What an undisturbed network answers."""
    whole, states = LayerSpan(0, num_layers), [0] * num_layers
    value, drawn = 0, list(prompt)
    for position in range(len(prompt) + num_tokens):
        if position >= len(prompt):
            drawn.append(draw(value))
        value = run_row(whole, embed(drawn[position], position), states)
    return tuple(drawn[len(prompt) :])


def to_bytes(value: int, row_bytes: int) -> bytes:
    """A hidden row that carries a value."""
    return value.to_bytes(VALUE_BYTES, "little") + bytes(row_bytes - VALUE_BYTES)


def from_bytes(row: bytes) -> int:
    """What a hidden row carries."""
    return int.from_bytes(row[:VALUE_BYTES], "little")
