"""How a long fetch reports."""

from collections.abc import Callable

PullProgress = Callable[[str, int, int], None]
"""Called with (phase, done bytes, total bytes).

Phases are "waiting" (another process pulls the same), "downloading", "extracting" and
"checking".
"""


def ignore_progress(phase: str, done_bytes: int, total_bytes: int) -> None:
    """For callers that do not show it."""
