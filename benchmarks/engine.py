"""The engine beside transformers and llama.cpp, and each weight format beside float32; see
`_engine_figures.py`.

`python benchmarks/engine.py [--strict] [--json FILE]`
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # Helpers are named from the root, as in every benchmark.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    # All contenders have the memory that a node has.
    importlib.import_module("plait.cli.huge_pages").use_huge_pages()
    importlib.import_module("benchmarks._engine_figures").main()
