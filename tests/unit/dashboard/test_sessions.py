"""Sign-in: sessions end, links work once, guessing is slowed down."""

from coordinator.dashboard.sessions import (
    FAILURES_IN_ALL,
    FAILURES_PER_ADDRESS,
    LINK_MS,
    LINKS_MAX,
    SESSION_MS,
    SESSIONS_MAX,
    WINDOW_MS,
    LoginLimiter,
    SessionStore,
)
from plait.clock import ManualClock


def test_a_session_is_found_by_its_cookie_until_it_ends() -> None:
    clock = ManualClock()
    store = SessionStore(clock=clock)
    cookie = store.open(key_id="k1", display_name="operator")
    session = store.find(cookie)
    assert session is not None
    assert session.key_id == "k1"
    clock.advance(SESSION_MS)
    assert store.find(cookie) is None


def test_wrong_cookies_find_nothing() -> None:
    store = SessionStore(clock=ManualClock())
    store.open(key_id="k1", display_name="operator")
    for cookie in (None, "", "guess", "x" * 10_000, "\x00"):
        assert store.find(cookie) is None


def test_signing_out_and_revoking_end_sessions() -> None:
    store = SessionStore(clock=ManualClock())
    one, two, three = (store.open(key_id=k, display_name="") for k in ("k1", "k1", "k2"))
    store.close(one)
    store.close(one)
    assert store.find(one) is None
    store.close_key("k1")
    assert store.find(two) is None
    assert store.find(three) is not None


def test_sessions_are_bounded() -> None:
    store = SessionStore(clock=ManualClock())
    cookies = [store.open(key_id=None, display_name="") for _ in range(SESSIONS_MAX + 1)]
    assert store.find(cookies[0]) is None
    assert store.find(cookies[-1]) is not None


def test_a_link_works_once_and_for_a_while() -> None:
    clock = ManualClock()
    store = SessionStore(clock=clock)
    first, second = store.issue_link(), store.issue_link()
    assert store.redeem_link(first)
    assert not store.redeem_link(first)
    clock.advance(LINK_MS)
    assert not store.redeem_link(second)
    assert not store.redeem_link("guess")


def test_links_are_bounded() -> None:
    store = SessionStore(clock=ManualClock())
    links = [store.issue_link() for _ in range(LINKS_MAX + 1)]
    assert not store.redeem_link(links[0])
    assert store.redeem_link(links[-1])


def test_an_address_that_guesses_must_wait() -> None:
    clock = ManualClock()
    limiter = LoginLimiter(clock=clock)
    for _ in range(FAILURES_PER_ADDRESS):
        assert limiter.wait_ms("10.0.0.1") == 0
        limiter.failed("10.0.0.1")
    assert limiter.wait_ms("10.0.0.1") == WINDOW_MS
    assert limiter.wait_ms("10.0.0.2") == 0
    clock.advance(WINDOW_MS)
    assert limiter.wait_ms("10.0.0.1") == 0


def test_many_addresses_that_guess_make_all_wait() -> None:
    clock = ManualClock()
    limiter = LoginLimiter(clock=clock)
    for number in range(FAILURES_IN_ALL):
        limiter.failed(f"10.0.0.{number}")
    assert limiter.wait_ms("192.168.0.1") == WINDOW_MS
    clock.advance(WINDOW_MS)
    assert limiter.wait_ms("192.168.0.1") == 0
