"""What an operator types: understood, or refused with the flag that is wrong."""

import pytest

from coordinator.config import CoordinatorConfig, Listen, parse_listen
from plait.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:5", "127.0.0.1", 5),
        ("127.0.0.1", "127.0.0.1", 7420),
        (":5", "0.0.0.0", 5),
        ("5", "0.0.0.0", 5),
        ("0", "0.0.0.0", 0),
        ("[::1]:5", "::1", 5),
        ("[::1]", "::1", 7420),
        ("::1", "::1", 7420),
        ("example.org:5", "example.org", 5),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, host: str, port: int) -> None:
    listen = parse_listen(text, flag="--listen", default_port=7420)
    assert (listen.host, listen.port) == (host, port)


@pytest.mark.parametrize("text", ["host:99999", "host:x", "-bad-:5", "a b:5", "host:-1", "[::1"])
def test_what_is_no_address_is_refused_with_its_flag(text: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        parse_listen(text, flag="--listen", default_port=7420)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"models": ()}, "--model"),
        ({"models": ("a", "a")}, "twice"),
        ({"advertised_hosts": ("no host",)}, "--advertise"),
        ({"nodes_min": 0}, "--min-nodes"),
        ({"kv_tokens_min": 0}, "--kv-tokens"),
        ({"max_tokens_default": -1}, "--max-tokens"),
        ({"queue_max": 0}, "--queue-max"),
        ({"plan_wait_ms": -1}, "--plan-wait-s"),
        ({"request_wait_ms": -1}, "--request-wait-s"),
        ({"wire_dtype": "float64"}, "--wire-dtype"),
        ({"node": Listen("0.0.0.0", 7420, "--node-listen")}, "--listen and --node-listen"),
        ({"broker_certs_dir": "x"}, "--broker-name"),
    ],
)
def test_settings_that_make_no_sense_name_their_flag(changes: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        CoordinatorConfig(**({"models": ("m",)} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["auto", "int8", "float32"])
def test_the_wire_may_be_left_to_the_links(word: str) -> None:
    assert CoordinatorConfig(models=("m",), wire_dtype=word).wire_dtype == word


def test_what_is_printed_can_be_dialled() -> None:
    assert CoordinatorConfig(models=("m",)).first_host == "127.0.0.1"
    named = CoordinatorConfig(models=("m",), advertised_hosts=("a.example", "b"))
    assert named.first_host == "a.example"
    bound = CoordinatorConfig(models=("m",), public=Listen("10.0.0.7", 1, "--listen"))
    assert bound.first_host == "10.0.0.7"
