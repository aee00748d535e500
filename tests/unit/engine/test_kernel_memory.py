"""Steps of many sizes: a node's memory must not grow with every number of rows it has seen."""

import subprocess
import sys

import pytest
import torch

from node.engine.linear import can_pack

GROWTH_MIB_MAX = 150
PROGRAM = """
import psutil, torch
from node.engine.linear import make_linear

torch.set_num_threads(1)
shapes = [(64, 64), (32, 64), (96, 64), (64, 96), (128, 64)]
linears = [make_linear(torch.zeros(shape)) for shape in shapes]
used = psutil.Process().memory_info
before = used().rss
for num_rows in range(4, 324):
    for (_, width), linear in zip(shapes, linears, strict=True):
        linear(torch.zeros(num_rows, width))
print((used().rss - before) >> 20)
"""


@pytest.mark.slow
@pytest.mark.skipif(not can_pack("cpu", torch.float32), reason="this torch packs no weights")
def test_memory_stays_bounded_over_steps_of_many_sizes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) < GROWTH_MIB_MAX
