"""Whether an address can be listened on, asked before anything depends on it."""

import errno
import socket

from plait.errors import ConfigError, plain_cause


def check_bindable(host: str, port: int, *, flag: str) -> None:
    """Bind and let go. gRPC's own error names neither the cause nor what helps.

    Args:
        host: an address of this machine, without brackets, or a name of one; may block on DNS.
        port: 0 for any free one.
        flag: what the user typed it behind.

    Raises:
        ConfigError: unknown name, another machine's address, a port that is taken (reason
            port_in_use) or not ours to take.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, UnicodeError) as error:
        raise bind_error(host, port, flag, error) from error


def bind_error(host: str, port: int, flag: str, error: OSError | UnicodeError) -> ConfigError:
    """What a failed bind means, and what helps."""
    code = None if isinstance(error, UnicodeError | socket.gaierror) else error.errno
    match code:
        case None:
            return ConfigError(
                f"{flag}: this machine knows no address for the name {host!r}; give an address of "
                "this machine, or 0.0.0.0 for all of them"
            )
        case errno.EADDRNOTAVAIL:
            return ConfigError(
                f"{flag}: {host} is not an address of this machine; 0.0.0.0 stands for all it has"
            )
        case errno.EADDRINUSE:
            cause = "is in use by another program"
        case errno.EACCES:
            cause = "may not be opened by this user"
        case _:
            cause = f"cannot be opened ({plain_cause(error)})"
    return ConfigError(
        f"port {port} on {host} {cause}: choose another with {flag} HOST:PORT (0: any free port)",
        reason="port_in_use" if code == errno.EADDRINUSE else None,
    )
