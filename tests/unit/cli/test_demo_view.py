"""What the demo makes of a network that does not come up."""

from dataclasses import replace

import pytest

from plait.cli.demo_view import LoadPatience
from plait.errors import ModelError
from tests.unit.dashboard.fakes import network_view


def test_a_failure_that_stays_ends_the_wait_in_the_nodes_words() -> None:
    healthy = network_view()
    broken = replace(healthy.nodes[0], last_error="tensor blk.3 holds NaN")
    failing = replace(healthy, nodes=(broken, *healthy.nodes[1:]))
    patience = LoadPatience(patience_s=10.0)
    patience.check(failing, 0.0)
    patience.check(failing, 9.0)
    patience.check(healthy, 9.5)
    patience.check(failing, 10.0)
    patience.check(failing, 19.9)
    with pytest.raises(ModelError, match=rf"{broken.display_name} cannot load.*blk\.3 holds NaN"):
        patience.check(failing, 20.0)
