"""What a client sees of a node that dies: see `_failover_figures.py`.

`python benchmarks/failover.py [--runs N] [--strict] [--json FILE]`
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # Helpers are named from the root, as in every benchmark.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    importlib.import_module("benchmarks._failover_figures").main()
