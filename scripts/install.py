"""pip install, told in a few lines: `python scripts/install.py REQUIREMENT...`, for the Makefile.

pip alone is either silent for minutes or prints hundreds of lines. This names the large downloads,
keeps the rest in a log beside the interpreter, and shows that log where pip fails.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

LARGE_MB: Final = 5.0
PIP: Final = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check")
OPTIONS: Final = ("--progress-bar", "off", "--config-settings", "editable_mode=compat")
"""Compat puts the checkout itself on the path: beside a clone named plait, `import plait` would
otherwise find that folder."""


def told(line: str) -> str | None:
    """What a line of pip's is worth on the screen."""
    large = re.match(r"\s*Downloading (?:\S*/)?(\w[\w.]*)-\S+ \((\d+(?:\.\d+)?) (MB|GB)\)", line)
    if large and (large[3] == "GB" or float(large[2]) >= LARGE_MB):
        return f"  {large[1]} ({large[2]} {large[3]})"
    return "  unpacking" if line.startswith("Installing collected packages") else None


def main(requirements: list[str]) -> int:
    """pip's exit status."""
    log_path = Path(sys.prefix) / "install.log"
    with (
        log_path.open("w") as log,
        subprocess.Popen(
            [*PIP, *OPTIONS, *requirements],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            if words := told(line):
                sys.stdout.write(f"{words}\n")
                sys.stdout.flush()
    if pip.returncode:
        sys.stderr.write(log_path.read_text())
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
