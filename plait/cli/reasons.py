"""Reasons that many nodes share are said once."""

from collections.abc import Iterable, Sequence

NAMES_SHOWN = 12


def by_reason(reasons: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(names, reason): the nodes of equal reasons together, in the order of the first of each."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons:
        names.setdefault(reason, []).append(name)
    return [(_listed(who), reason) for reason, who in names.items()]


def apart(reasons: Sequence[str]) -> tuple[list[str], list[str]]:
    """What each "own part: shared part" says of its own, and the shared parts, each once.

    Where there are several shared parts, an own part ends in the number of its own, as "[2]".
    """
    shared = [reason.partition(": ")[2] for reason in reasons]
    texts = [text for text in dict.fromkeys(shared) if text and shared.count(text) > 1]
    own = []
    for reason, text in zip(reasons, shared, strict=True):
        if text not in texts:
            own.append(reason)
            continue
        mark = f" [{texts.index(text) + 1}]" if len(texts) > 1 else ""
        own.append(reason.partition(": ")[0] + mark)
    notes = texts if len(texts) < 2 else [f"[{at}] {text}" for at, text in enumerate(texts, 1)]
    return own, notes


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
