"""Weights for this node: only those of its span are read, and a model out of the catalogue is
fetched first where it is missing."""

from plait.models.opening import open_source
from plait.models.pulling import pull
from plait.models.source import TensorSource
from plait.types import ModelSource, SourceKind


def open_weights(source: ModelSource) -> TensorSource:
    """Opens a model; a hub's is read by ranges, so that nothing but the span travels.

    Blocks while it fetches. Raises ModelError or WeightsError.
    """
    if source.kind is SourceKind.CATALOGUE:
        source = pull(source)
    return open_source(source)
