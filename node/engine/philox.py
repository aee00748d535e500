"""Philox4x64-10, a counter-based random generator: any draw can be made again from its counter.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC11. Ten rounds of two
64-bit products over a 256-bit counter and a 128-bit key.
"""

_MASK = (1 << 64) - 1
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10


def philox4x64(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """The four 64-bit words of one counter under one key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (p1 >> 64) ^ c1 ^ k0,
            p1 & _MASK,
            (p0 >> 64) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """The uniform number in [0, 1) that belongs to a seed and a place in the sequence."""
    word = philox4x64((position & _MASK, 0, 0, 0), (seed & _MASK, 0))[0]
    return (word >> 11) * 2.0**-53
