"""What solvers print does not mix with answers, nor licences with anything."""

import subprocess
import sys

PROGRAM = """
import os
from plait.cli.solver_output import solver_output_to_stderr
import highspy

print("before")
with solver_output_to_stderr():
    highspy.Highs().run()
    os.write(1, b"a solver's trouble")
print("after")
"""


def test_the_banner_is_not_seen_and_trouble_is() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "before\nafter\n"
    assert "a solver's trouble" in done.stderr
    assert "icence" not in done.stdout + done.stderr
