"""A kernel's parts side by side, on as many threads as torch may use."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise

import torch

_THREAD_NUMBERS = 1 << 19
"""Numbers multiplied that are worth a thread of their own: a tenth of a millisecond or so."""


def in_threads(do: Callable[[range], None], count: int, *, numbers: int) -> None:
    """`do` all of `count` parts, which together multiply `numbers`."""
    num_threads = min(torch.get_num_threads(), count, 1 + numbers // _THREAD_NUMBERS)
    if num_threads <= 1:
        do(range(count))
        return
    ends = [count * part // num_threads for part in range(num_threads + 1)]
    parts = [range(first, end) for first, end in pairwise(ends)]
    others = [_helpers().submit(do, part) for part in parts[1:]]
    do(parts[0])
    wait(others)
    for other in others:
        other.result()


@cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, torch.get_num_threads()), thread_name_prefix="product")
