"""How a node that is killed is started anew."""

from plait.cli.node_keep import SHARE, WINDOW_S, Restarts

GIB = 1 << 30


def test_the_first_deaths_cost_a_short_pause_and_no_memory() -> None:
    restarts = Restarts(8 * GIB, 16 * GIB)
    assert [restarts.died(now_s) for now_s in (0.0, 10.0)] == [0.5, 1.0]
    assert restarts.memory_bytes == 8 * GIB


def test_the_third_death_in_ten_minutes_makes_the_node_ask_for_less() -> None:
    restarts = Restarts(8 * GIB, 16 * GIB)
    for now_s in (0.0, 10.0, 20.0):
        restarts.died(now_s)
    assert restarts.memory_bytes == round(8 * GIB * SHARE)


def test_without_a_cap_less_means_less_than_what_was_free() -> None:
    restarts = Restarts(None, 16 * GIB)
    for now_s in (0.0, 10.0, 20.0):
        restarts.died(now_s)
    assert restarts.memory_bytes == round(16 * GIB * SHARE)


def test_old_deaths_do_not_count() -> None:
    restarts = Restarts(8 * GIB, 16 * GIB)
    for now_s in (0.0, 10.0, 11.0 + WINDOW_S):
        wait_s = restarts.died(now_s)
    assert (wait_s, restarts.memory_bytes) == (0.5, 8 * GIB)


def test_a_pause_has_a_bound() -> None:
    restarts = Restarts(8 * GIB, 16 * GIB)
    assert max(restarts.died(float(now_s)) for now_s in range(50)) == 60.0
