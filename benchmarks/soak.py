"""Faults for a long time, requests all the while: see `_soak_figures.py`.

`python benchmarks/soak.py [--minutes N] [--seed N] [--strict] [--json FILE]`
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # Helpers are named from the root, as in every benchmark.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    importlib.import_module("benchmarks._soak_figures").main()
