"""Decode rates of transformers, our engine and our ring; see `_decode_figures.py`.

`python benchmarks/decode.py [--strict] [--json FILE]`
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # Helpers are named from the root, as in every benchmark.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    # All contenders have the memory that a node has.
    importlib.import_module("plait.cli.huge_pages").use_huge_pages()
    importlib.import_module("benchmarks._decode_figures").main()
