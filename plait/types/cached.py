"""Layers whose weights a node has from before, in memory or on its disk."""

from collections.abc import Iterable
from dataclasses import dataclass

from plait.types.ids import ModelId
from plait.types.span import LayerSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedSpan:
    """Layers of a model that need not be fetched again; `digest` names the very weights."""

    model_id: ModelId
    span: LayerSpan
    digest: str


def merged(cached: Iterable[CachedSpan]) -> tuple[CachedSpan, ...]:
    """The same layers in as few spans as possible: those that touch or overlap become one."""
    found: list[CachedSpan] = []
    for one in sorted(cached, key=lambda c: (c.model_id, c.digest, c.span)):
        last = found[-1] if found else None
        is_same = last is not None and (last.model_id, last.digest) == (one.model_id, one.digest)
        if last is None or not is_same or one.span.start > last.span.end:
            found.append(one)
            continue
        span = LayerSpan(last.span.start, max(last.span.end, one.span.end))
        found[-1] = CachedSpan(model_id=one.model_id, span=span, digest=one.digest)
    return tuple(found)
