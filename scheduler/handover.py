"""Which layers the stages of a chain run, where nodes hold more than these."""

from collections.abc import Sequence

from plait.types import LayerSpan


def handed_over(held: Sequence[LayerSpan], num_layers: int) -> list[LayerSpan] | None:
    """What each stage runs, of what its node holds; None where that makes no chain.

    A stage goes on from where its predecessor ends, to the end of what its node holds; where that
    reaches as far as the next node's layers or further, to where those begin.
    """
    spans: list[LayerSpan] = []
    at = 0
    for i, own in enumerate(held):
        end = own.end
        if i + 1 < len(held) and end >= held[i + 1].end:
            end = held[i + 1].start
        if not own.start <= at < end:
            return None
        spans.append(LayerSpan(at, end))
        at = end
    return spans if at == num_layers else None
