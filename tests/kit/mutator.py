"""Valid messages made malformed: cut, flipped, spliced, repeated, blown up."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

FRAMES: Final = int(os.environ.get("PLAIT_FUZZ_FRAMES", "2000"))
"""Malformed messages for each target; by hand: 100000 and more."""

BATCH: Final = 25
EXAMPLES: Final = max(1, FRAMES // BATCH)
GROWTH_BYTES: Final = 24 << 20
HUGE: Final = (b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\x80\x80\x80\x80\x10")
"""Lengths and numbers of many bytes."""


def mutants(seed: int, corpus: Sequence[bytes], num: int = BATCH) -> Iterator[bytes]:
    """So many messages, in no order, most of them malformed once or twice."""
    rng = Random(seed)
    for _ in range(num):
        message = rng.choice(corpus)
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            message = _mutate(rng, message, corpus)
        yield message


def _mutate(rng: Random, message: bytes, corpus: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(message) + 1)
    end = min(len(message), at + rng.randrange(1, 24))
    match rng.randrange(9):
        case 0:  # truncated
            return message[:at]
        case 1 if message:  # a bit flipped
            flipped = bytearray(message)
            flipped[at % len(message)] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case 2:  # a wrong length or a huge number
            return message[:at] + rng.choice(HUGE) + message[at + 1 :]
        case 3:  # another message's fields behind these: repeated, or two of a oneof
            return message + rng.choice(corpus)
        case 4:  # the middle of another message
            other = rng.choice(corpus)
            cut = rng.randrange(len(other) + 1)
            return message[:at] + other[cut : cut + 40] + message[end:]
        case 5:  # a part twice
            return message[:end] + message[at:]
        case 6:  # a part missing
            return message[:at] + message[end:]
        case 7:  # noise
            return message[:at] + rng.randbytes(rng.randrange(1, 9)) + message[end:]
        case _:  # another value of one byte
            return message[:at] + bytes([rng.randrange(256)]) + message[at + 1 :]


def rss_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Memory:
    """Whether what is resident grows from the first tenth to the end."""

    def __init__(self) -> None:
        self._num = 0
        self._warm_bytes = 0

    def count(self) -> None:
        """One example more."""
        self._num += 1
        if self._num == max(1, EXAMPLES // 10):
            self._warm_bytes = rss_bytes()

    def check(self, what: str) -> None:
        """Print the figures, and compare them."""
        now_bytes = rss_bytes()
        figures = f"{self._warm_bytes >> 10} KiB resident, then {now_bytes >> 10} KiB"
        print(f"{what}: {self._num * BATCH} messages, {figures}")  # noqa: T201 - for runs by hand
        assert now_bytes - self._warm_bytes < GROWTH_BYTES
