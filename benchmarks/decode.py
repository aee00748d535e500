"""Decode rates of transformers, our engine and our ring; see `_decode_figures.py`.

`python benchmarks/decode.py [--strict] [--json FILE]`
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # Helpers are named from the root, as in every benchmark.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    importlib.import_module("benchmarks._decode_figures").main()
