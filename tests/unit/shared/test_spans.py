"""Spans, and what of a model they leave uncovered."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.types import LayerSpan, missing_spans

spans = st.tuples(st.integers(0, 30), st.integers(1, 30)).map(
    lambda pair: LayerSpan(pair[0], pair[0] + pair[1])
)


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (3, 3), (4, 2)])
def test_an_empty_or_backward_span_is_not_one(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not a layer span"):
        LayerSpan(start, end)


@given(st.lists(spans, max_size=6), st.integers(1, 40))
def test_missing_spans_are_the_layers_that_nobody_holds(
    held: list[LayerSpan], num_layers: int
) -> None:
    naive = {
        layer
        for layer in range(num_layers)
        if not any(span.start <= layer < span.end for span in held)
    }
    missing = [span for span in missing_spans(held, num_layers) if span.start < num_layers]
    told = {layer for span in missing for layer in range(span.start, min(span.end, num_layers))}
    assert told == naive
    assert all(a.end < b.start for a, b in itertools.pairwise(missing))
