"""Where the parts of a layer that several ranks hold come together."""

from node.engine.layers.block import FeedForward
from node.engine.linear import Linear


class Joins:
    """What is done to the products of a layer that a tensor-parallel group joins; here, on a stage
    that one node holds alone, nothing. `leads`: this rank has the stage's embedding."""

    leads: bool = True
    is_alone: bool = True

    def out(self, linear: Linear) -> Linear:
        """A product whose input is divided among the ranks."""
        return linear

    def feed_forward(self, part: FeedForward) -> FeedForward:
        """A part of a layer whose result is a sum over the ranks."""
        return part

    def router(self, linear: Linear) -> Linear:
        """A product after which all ranks have to choose alike."""
        return linear

    def head(self, linear: Linear) -> Linear:
        """A product whose outputs are divided among the ranks."""
        return linear


ALONE = Joins()
"""Of a stage that is held by one."""
