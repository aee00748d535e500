"""What simulated pools serve, and how true the simulator is; see `_simulation_figures.py`.

`python benchmarks/simulation.py [--yardsticks DIR] [--seeds N] [--no-pools] [--no-ring]
[--json FILE]`
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # A benchmark beside this one is called like the package that is measured.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    importlib.import_module("benchmarks._simulation_figures").main()
