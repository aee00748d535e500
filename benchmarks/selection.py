"""How long choosing a chain takes; see `_selection_figures.py`.

`python benchmarks/selection.py [--json FILE]`
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # A benchmark beside this one is called like the package that is measured.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    importlib.import_module("benchmarks._selection_figures").main()
