"""What a failure is called in front of people."""

import socket
from pathlib import Path

import pytest

from plait.errors import plain_cause


def failing_open() -> OSError:
    with pytest.raises(OSError) as caught:
        Path("/nowhere/at/all").read_bytes()
    return caught.value


def wrapped(inner: Exception) -> Exception:
    try:
        try:
            raise inner
        except Exception as error:
            raise RuntimeError(f"wrapped: {error}") from error
    except RuntimeError as outer:
        return outer


def test_the_systems_words_without_number_and_path() -> None:
    assert plain_cause(failing_open()) == "no such file or directory"
    assert plain_cause(wrapped(failing_open())) == "no such file or directory"


def test_a_name_that_nobody_knows_is_the_networks_trouble() -> None:
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert "DNS" in plain_cause(unknown)
    assert "DNS" in plain_cause(wrapped(unknown))


def test_other_errors_give_their_first_line() -> None:
    assert plain_cause(ValueError("one\ntwo")) == "one"
    assert plain_cause(ValueError()) == "ValueError"
    assert plain_cause(RuntimeError("[Errno -2] Name or service")) == "Name or service"


def test_a_circle_of_causes_ends() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert plain_cause(one) == "one"
