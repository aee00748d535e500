"""Philox against numpy's."""

import numpy as np
import pytest

from node.engine.philox import philox4x64, uniform


@pytest.mark.parametrize(
    ("counter", "key"),
    [
        ((0, 0, 0, 0), (0, 0)),
        ((1, 2, 3, 4), (5, 6)),
        ((2**64 - 2, 2**64 - 1, 7, 2**63), (2**64 - 1, 12345)),
    ],
)
def test_words_are_numpys(counter: tuple[int, int, int, int], key: tuple[int, int]) -> None:
    # numpy counts up before it draws.
    before = sum(word << (64 * i) for i, word in enumerate(counter)) - 1
    start = before % 2**256
    words = [(start >> (64 * i)) & (2**64 - 1) for i in range(4)]
    generator = np.random.Philox(
        counter=np.array(words, dtype=np.uint64), key=np.array(key, dtype=np.uint64)
    )
    assert philox4x64(counter, key) == tuple(int(w) for w in generator.random_raw(4))


def test_uniform_takes_any_seed() -> None:
    for seed in (0, -1, 2**64 - 1, 2**70 + 3):
        assert 0.0 <= uniform(seed, 5) < 1.0
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)
    assert uniform(1, 5) != uniform(1, 6) != uniform(2, 6)
