"""The C library's heap: memory that was freed goes back to the system when it is told to."""

import ctypes


def give_back() -> None:
    """Pages that hold nothing any more, wherever they lie. glibc by itself gives back what lies at
    a heap's end; other libraries (musl, those of macOS and Windows) have no such call."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return
