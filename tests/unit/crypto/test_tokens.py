"""Enrolment tokens and API keys as words."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.clock import ManualClock
from plait.crypto.authority import CertificateAuthority
from plait.crypto.tokens import (
    JoinToken,
    api_key_id,
    is_secret,
    new_api_key,
    new_join_token,
    secret_digest,
)
from plait.errors import ConfigError

CA = CertificateAuthority.create(ManualClock())
TOKEN = new_join_token(ca_der=CA.certificate_der, address="plait.example.org:7420")
WORD = TOKEN.encode()


def refusal(word: str) -> str:
    with pytest.raises(ConfigError) as caught:
        JoinToken.parse(word)
    assert "token" in caught.value.message
    return caught.value.code


def test_a_token_carries_the_network_in_one_word() -> None:
    assert JoinToken.parse(WORD) == TOKEN
    assert JoinToken.parse(WORD).ca_pem == CA.certificate_pem
    assert JoinToken.parse(WORD).network_id == CA.network_id
    assert WORD.startswith("plait1.")
    assert len(WORD) < 1000


def test_a_token_survives_a_mail_programs_line_breaks() -> None:
    folded = "\n ".join(WORD[at : at + 70] for at in range(0, len(WORD), 70))
    assert JoinToken.parse(f"  {folded}\n") == TOKEN


def test_a_printed_token_shows_no_secret() -> None:
    assert TOKEN.secret not in repr(TOKEN)


@pytest.mark.parametrize(
    "length",
    [len("plait1."), 10, 40, len(WORD) // 2, len(WORD) - 1],
    ids=["prefix", "10", "40", "half", "all but one"],  # keys differ in length from run to run
)
def test_a_truncated_token_is_told(length: int) -> None:
    assert refusal(WORD[:length]) == "token_truncated"


def test_other_versions_are_told() -> None:
    assert refusal("plait2." + WORD[7:]) == "token_version"
    assert refusal("plait10.AAAA") == "token_version"


@pytest.mark.parametrize(
    "word",
    ["", "hello", "plait.x", "sk-plait-abc-def", "plaitx.abc", WORD * 9],
    ids=["empty", "hello", "no body", "an API key", "another version", "too long"],
)
def test_garbage_is_told(word: str) -> None:
    assert refusal(word) == "token_malformed"


def test_a_typing_error_is_told() -> None:
    for at in (8, 60, len(WORD) // 2, len(WORD) - 3):
        other = "A" if WORD[at] != "A" else "B"
        word = WORD[:at] + other + WORD[at + 1 :]
        assert refusal(word) in ("token_malformed", "token_truncated")
    assert refusal(WORD + "AAAA") == "token_malformed"
    assert refusal(WORD[:20] + "§" + WORD[21:]) == "token_malformed"


def test_a_token_around_something_else_than_a_certificate() -> None:
    assert refusal(new_join_token(ca_der=b"not a certificate").encode()) == "token_malformed"


@given(st.one_of(st.text(max_size=200), st.text(max_size=200).map(lambda text: "plait1." + text)))
def test_random_text_is_a_config_error_and_nothing_else(text: str) -> None:
    with pytest.raises(ConfigError):
        JoinToken.parse(text)


@given(st.binary(max_size=300))
def test_random_bytes_in_a_token_are_a_config_error(content: bytes) -> None:
    word = "plait1." + base64.urlsafe_b64encode(content).decode().rstrip("=")
    with pytest.raises(ConfigError):
        JoinToken.parse(word)


def test_an_address_too_long_for_a_token() -> None:
    with pytest.raises(ConfigError):
        new_join_token(ca_der=CA.certificate_der, address="a" * 256).encode()


def test_an_api_key_names_its_id_and_hides_its_secret() -> None:
    key, key_id = new_api_key()
    assert key.startswith(f"sk-plait-{key_id}-")
    assert api_key_id(key) == key_id
    assert is_secret(key, secret_digest(key))
    assert not is_secret(key + "x", secret_digest(key))


@given(st.text(max_size=300))
def test_random_text_is_no_api_key(text: str) -> None:
    assert api_key_id(text) is None
    secret_digest(text)
