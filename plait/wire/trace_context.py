"""A client's place in its own trace, as W3C Trace Context writes it (level 1, section 3)."""

import re
from dataclasses import dataclass
from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
STATE_CHARS_MAX: Final = 512
_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.{0,64})?\Z")
_PRINTABLE: Final = re.compile(r"[ -~]*\Z")


@dataclass(frozen=True, slots=True)
class TraceParent:
    """Both headers, as they came. `state` is empty where there was none of use."""

    parent: str
    state: str = ""


def read_trace_parent(parent: str | None, state: str | None = None) -> TraceParent | None:
    """What the headers say; None where they say nothing that can be followed: a trace of our own
    begins then, as the standard has it."""
    match = _PARENT.match(parent or "")
    if parent is None or match is None:
        return None
    version, trace_id, span_id, more = match.groups()
    is_odd = version == "ff" or (version == "00" and more is not None)
    if is_odd or not int(trace_id, 16) or not int(span_id, 16):
        return None
    is_state_good = state and len(state) <= STATE_CHARS_MAX and _PRINTABLE.match(state)
    return TraceParent(parent, state if state and is_state_good else "")
