"""The `plait` command's entry. Imports next to nothing, so that a Ctrl-C in the first moments,
while the rest is loaded, finds somebody who can end quietly."""

import os
import sys

INTERRUPTED = 130
"""The exit code of what Ctrl-C ended, by the shells' custom."""

try:
    import signal
except KeyboardInterrupt:
    os._exit(INTERRUPTED)


def main() -> None:
    """Run the command. Ctrl-C that it does not answer itself ends it with INTERRUPTED."""
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else: as inherited
    if is_ours:
        signal.signal(signal.SIGINT, _leave)
    from plait.cli.app import run

    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the second one, while the first is answered
        sys.exit(INTERRUPTED)


def _leave(*_: object) -> None:
    """Nothing is open yet: end here, wherever in an import that is."""
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
