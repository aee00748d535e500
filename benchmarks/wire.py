"""What activations cost on a hop in each dtype, and what that does to answers; see
`_wire_figures.py`.

`python benchmarks/wire.py [--strict] [--json FILE]`
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # Helpers are named from the root, as in every benchmark.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    importlib.import_module("benchmarks._wire_figures").main()
