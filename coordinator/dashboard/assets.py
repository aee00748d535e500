"""Where the dashboard is, its files, and the order in which a browser reads the style sheets."""

from pathlib import Path
from typing import Final

MOUNT_PATH: Final = "/dashboard"
STATIC: Final = Path(__file__).parent / "static"
SHEETS: Final = ("theme", "frame", "figures", "tables", "forms", "pictures", "narrow")
"""Later ones win: `narrow` overrules all others on small screens."""
SHEET_LINKS: Final = "\n".join(
    f'<link rel="stylesheet" href="{MOUNT_PATH}/assets/{name}.css">' for name in SHEETS
)
