"""Many requests on one chain: rates, gaps between tokens, shared beginnings; see
`_serving_figures.py`.

`python benchmarks/serving.py [--strict] [--json FILE]`
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # Helpers are named from the root, as in every benchmark.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    importlib.import_module("benchmarks._serving_figures").main()
