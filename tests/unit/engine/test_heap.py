"""What a node lets go of is the owner's again, wherever it lay in the heap."""

import os
import subprocess
import sys

import pytest

from plait.cli.huge_pages import TUNABLES, libc_version, tuned

NUM_MIB = 200
PROGRAM = f"""
import psutil, torch
from node.engine.heap import give_back

used_mib = lambda: psutil.Process().memory_info().rss >> 20
held = [torch.ones(1 << 18) for _ in range({NUM_MIB})]
above = torch.ones(1 << 10)
most = used_mib()
del held
give_back()
print(most - used_mib())
"""


@pytest.mark.slow
@pytest.mark.skipif(tuned({}, libc_version()) is None, reason="another C library's heap")
def test_memory_goes_back_to_the_system() -> None:
    """Blocks that lie in the heap, none by itself, with one above them that stays."""
    environment = {**os.environ, TUNABLES: "glibc.malloc.mmap_threshold=1073741824"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(done.stdout) > 0.9 * NUM_MIB
