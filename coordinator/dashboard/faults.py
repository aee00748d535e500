"""The page in place of one that is not there or failed: plain HTML that needs no script. NiceGUI's
own needs `eval`, and shows what an exception says."""

from typing import Final

from coordinator.dashboard.assets import MOUNT_PATH, SHEET_LINKS

_SAID: Final = {
    404: ("No such page", "The address names no page of the dashboard."),
    500: ("This page failed", "The coordinator's log says why. Others may work."),
}


def fault_page(status: int) -> bytes:
    """What is shown for an HTTP status from 400 on."""
    title, said = _SAID.get(status, _SAID[404 if status < 500 else 500])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title} · plait</title>{SHEET_LINKS}"
        f'<script src="{MOUNT_PATH}/assets/theme.js"></script></head>'
        f'<body class="login"><main class="login-card"><h1>{title}</h1><p>{said}</p>'
        f'<p><a class="btn btn-primary" href="{MOUNT_PATH}/">To the overview</a></p></main>'
        "</body></html>"
    ).encode()
