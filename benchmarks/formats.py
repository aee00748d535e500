"""What each weight format costs in accuracy and memory; see `_format_figures.py`.

`python benchmarks/formats.py [--strict] [--json FILE]`
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # Helpers are named from the root, as in every benchmark.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    importlib.import_module("benchmarks._format_figures").main()
