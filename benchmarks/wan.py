"""A ring over real links: 20 ms one way on each, by the network emulator; see `_wan_figures.py`.

`python benchmarks/wan.py [--strict] [--json FILE]`
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # Helpers are named from the root, as in every benchmark.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    importlib.import_module("benchmarks._wan_figures").main()
