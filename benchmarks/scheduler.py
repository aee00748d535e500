"""The scheduler's figures; see `_scheduler_figures.py`.

`python benchmarks/scheduler.py [--yardsticks DIR] [--json FILE]`
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # This file is called like the package it measures: look from the root, not from here.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    importlib.import_module("benchmarks._scheduler_figures").main()
