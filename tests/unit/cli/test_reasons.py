"""What many nodes share is said once."""

from plait.cli.reasons import NAMES_SHOWN, apart, by_reason


def test_nodes_of_one_reason_stand_together() -> None:
    pairs = [("a", "fits"), ("b", "stands by"), ("c", "fits")]
    assert by_reason(pairs) == [("a, c", "fits"), ("b", "stands by")]


def test_a_long_list_of_names_is_cut() -> None:
    ((names, _),) = by_reason((f"n{i}", "idle") for i in range(NAMES_SHOWN + 3))
    assert names.endswith(f"n{NAMES_SHOWN - 1} and 3 more")


def test_one_shared_part_is_taken_out_of_every_row() -> None:
    rows = ["stage 1 of 2: the best split", "stage 2 of 2: the best split"]
    assert apart(rows) == (["stage 1 of 2", "stage 2 of 2"], ["the best split"])


def test_several_shared_parts_are_numbered_and_single_ones_stay() -> None:
    rows = ["a: x", "b: y", "c: x", "d: y", "e: only mine", "no reason"]
    own, notes = apart(rows)
    assert own == ["a [1]", "b [2]", "c [1]", "d [2]", "e: only mine", "no reason"]
    assert notes == ["[1] x", "[2] y"]
