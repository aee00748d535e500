"""Every rule, told by readings: when it pauses, what it says, when it lets go."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from node.owner.hardware import HardwareReading
from node.owner.pause import Pause
from node.owner.rules import POWER_MS, POWER_REST_MS, OwnerRules, WhyPaused, unwatched
from node.owner.settings import OwnerSettings, read_settings

SETTLE_MS = 15_000
NOON = datetime(2026, 6, 1, 12, 0)  # noqa: DTZ001 - a local time


class Owner:
    """Rules and the moment."""

    def __init__(self, *sets: str) -> None:
        self.settings: OwnerSettings = read_settings(Path("none"), environ={}, flags=sets)
        self.rules = OwnerRules(self.settings)
        self.now_ms = 0
        self.local = NOON
        self.pause: Pause | None = None
        self.traffic_bytes = 0

    def sees(self, after_ms: int = 0, /, **reading: float | bool) -> WhyPaused | None:
        self.now_ms += after_ms
        return self.rules.why(
            HardwareReading(**reading),  # type: ignore[arg-type]
            now_ms=self.now_ms,
            local=self.local,
            pause=self.pause,
            traffic_bytes=self.traffic_bytes,
        )

    def code(self, after_ms: int = 0, /, **reading: float | bool) -> str:
        why = self.sees(after_ms, **reading)
        return why.code if why is not None else ""


MACHINE: list[tuple[str, dict[str, float | bool], dict[str, float | bool], str]] = [
    (
        "pause_when.other_gpu_process_mb=500",
        {"other_gpu_process_mb": 500.0},
        {"other_gpu_process_mb": 499.0},
        "other_gpu_process",
    ),
    ("pause_when.battery=true", {"is_on_battery": True}, {"is_on_battery": False}, "battery"),
    ("pause_when.fullscreen=true", {"is_fullscreen": True}, {"is_fullscreen": False}, "fullscreen"),
    (
        "pause_when.user_active_min=10",
        {"user_idle_s": 599.0},
        {"user_idle_s": 600.0},
        "user_active",
    ),
    ("temp_max_c=80", {"gpu_temp_c": 81.0}, {"gpu_temp_c": 71.0}, "temp_max_c"),
]


@pytest.mark.parametrize(("rule", "held", "free", "code"), MACHINE)
def test_a_rule_pauses_at_once_says_why_and_lets_go_when_it_was_silent_for_a_while(
    rule: str, held: dict[str, float | bool], free: dict[str, float | bool], code: str
) -> None:
    owner = Owner(rule)
    assert owner.code(**free) == ""
    why = owner.sees(**held)
    assert why is not None and why.code == code
    assert f"--set: {rule.partition('=')[0]}" in why.message
    assert owner.code(1_000, **free) == code
    assert owner.code(SETTLE_MS - 1, **free) == code
    assert owner.code(1, **held) == code
    assert owner.code(1_000, **free) == code
    assert owner.code(SETTLE_MS, **free) == ""


@pytest.mark.parametrize(("rule", "held", "free", "code"), MACHINE)
def test_what_is_not_asked_for_pauses_nothing_and_what_cannot_be_told_neither(
    rule: str, held: dict[str, float | bool], free: dict[str, float | bool], code: str
) -> None:
    assert Owner().code(**held) == ""
    owner = Owner(rule)
    assert owner.code() == ""
    (note,) = unwatched(owner.settings, HardwareReading())
    assert rule.partition("=")[0] in note
    assert unwatched(owner.settings, HardwareReading(**free)) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize("settle_s", [0, 2.5, 600])
def test_its_owner_says_how_long_a_rule_must_have_been_silent(settle_s: float) -> None:
    owner = Owner("pause_when.battery=true", f"pause_when.settle_s={settle_s}")
    assert owner.code(is_on_battery=True) == "battery"
    if settle_s:
        assert owner.code(250, is_on_battery=False) == "battery"
        assert owner.code(int(settle_s * 1_000) - 1, is_on_battery=False) == "battery"
    assert owner.code(1, is_on_battery=False) == ""


def test_a_hot_gpu_cools_well_below_its_limit_first() -> None:
    owner = Owner("temp_max_c=80")
    assert owner.code(gpu_temp_c=80.0) == ""
    assert owner.code(gpu_temp_c=80.5) == "temp_max_c"
    assert owner.code(SETTLE_MS * 9, gpu_temp_c=73.0) == "temp_max_c"
    assert owner.code(gpu_temp_c=72.0) == "temp_max_c"
    assert owner.code(SETTLE_MS, gpu_temp_c=72.0) == ""


def test_a_gpu_that_draws_too_much_rests_a_minute() -> None:
    owner = Owner("power_limit_w=200")
    assert owner.code(power_w=300.0) == ""
    assert owner.code(POWER_MS - 1, power_w=300.0) == ""
    assert owner.code(1, power_w=300.0) == "power_limit_w"
    assert owner.code(POWER_REST_MS - 1, power_w=20.0) == "power_limit_w"
    assert owner.code(1, power_w=20.0) == "power_limit_w"
    assert owner.code(SETTLE_MS, power_w=20.0) == ""
    assert owner.code(power_w=300.0) == ""


def test_hours_and_the_months_traffic() -> None:
    owner = Owner("schedule=18:00-8:00", "monthly_gb=2")
    why = owner.sees()
    assert why is not None and "for another 6 h 00 min" in why.message
    owner.local = NOON + timedelta(hours=6)
    assert owner.code() == ""
    owner.traffic_bytes = 2_000_000_000
    why = owner.sees()
    assert why is not None and "2.0 of 2 GB" in why.message
    owner.traffic_bytes = 0  # a new month
    assert owner.code() == ""


def test_the_owners_own_word_comes_first_and_lifting_it_waits_for_nothing() -> None:
    owner = Owner("pause_when.battery=true")
    owner.pause = Pause(0, None)
    why = owner.sees(is_on_battery=True)
    assert why is not None and "plait node resume" in why.message
    owner.pause = None
    assert owner.code(is_on_battery=False) == ""
    assert owner.code(is_on_battery=True) == "battery"


def moments() -> Iterator[datetime]:
    yield from (NOON + timedelta(hours=hour) for hour in range(24))


def test_without_rules_no_moment_pauses() -> None:
    owner = Owner()
    for moment in moments():
        owner.local = moment
        assert owner.code(3_600_000, is_on_battery=True, gpu_temp_c=99.0, power_w=900.0) == ""
