"""When a machine is its owner's alone. Pure: readings and times come in, a reason comes out."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from node.owner.hardware import HardwareReading
from node.owner.limits import TRAFFIC_GB
from node.owner.pause import Pause
from node.owner.settings import OwnerSettings

COOL_C: Final = 8.0
POWER_SHARE: Final = 1.05
POWER_MS: Final = 5_000
POWER_REST_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class WhyPaused:
    """Why the node does not serve: a stable word and a sentence for people."""

    code: str
    message: str


class OwnerRules:
    """Looks at one reading after another; remembers only what keeps it from flapping."""

    def __init__(self, settings: OwnerSettings) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._settle_ms = round(settings.limits.pause_when.settle_s * 1_000)
        self._held: WhyPaused | None = None
        self._clear_since_ms: int | None = None
        self._hot_since_ms: int | None = None
        self._power_until_ms = 0

    def why(
        self,
        reading: HardwareReading,
        *,
        now_ms: int,
        local: datetime,
        pause: Pause | None,
        traffic_bytes: int,
    ) -> WhyPaused | None:
        """Why the machine is the owner's alone now; None where it is lent.

        Args:
            now_ms: monotonic.
            local: the owner's wall clock.
            traffic_bytes: this month's, both ways.
        """
        if pause is not None:
            self._held = None  # lifting it lifts what else held: what still does, shows at once
            return _asked(pause)
        found = self._by_time(local, traffic_bytes) or self._by_machine(reading, now_ms)
        if found is not None:
            self._held, self._clear_since_ms = found, None
            return found
        if self._held is None:
            return None
        if self._clear_since_ms is None:
            self._clear_since_ms = now_ms
        left_ms = self._clear_since_ms + self._settle_ms - now_ms
        if left_ms <= 0 or self._held.code in ("schedule", "monthly_gb"):
            self._held = None
            return None
        return WhyPaused(self._held.code, f"{self._held.message}; over, waiting if it stays so")

    def _by_time(self, local: datetime, traffic_bytes: int) -> WhyPaused | None:
        limits, named = self._limits, self._settings.named
        if limits.schedule is not None and not limits.schedule.is_open(local):
            wait = _duration(limits.schedule.opens_in_min(local))
            return WhyPaused(
                "schedule", f"outside its hours for another {wait} ({named('schedule')})"
            )
        if limits.monthly_gb is not None and traffic_bytes >= limits.monthly_gb * TRAFFIC_GB:
            used = f"{traffic_bytes / TRAFFIC_GB:.1f} of {limits.monthly_gb:g} GB"
            return WhyPaused("monthly_gb", f"{used} of this month are used ({named('monthly_gb')})")
        return None

    def _by_machine(self, reading: HardwareReading, now_ms: int) -> WhyPaused | None:
        rules, named = self._limits.pause_when, self._settings.named
        others, limit_mb = reading.other_gpu_process_mb, rules.other_gpu_process_mb
        if limit_mb is not None and others is not None and others >= limit_mb:
            key = named("pause_when.other_gpu_process_mb")
            return WhyPaused(
                "other_gpu_process", f"other programs hold {others:.0f} MiB of GPU memory ({key})"
            )
        if rules.battery and reading.is_on_battery:
            key = named("pause_when.battery")
            return WhyPaused("battery", f"the machine runs on its battery ({key})")
        if rules.fullscreen and reading.is_fullscreen:
            key = named("pause_when.fullscreen")
            return WhyPaused("fullscreen", f"a program fills the screen ({key})")
        idle_s, active_min = reading.user_idle_s, rules.user_active_min
        if active_min is not None and idle_s is not None and idle_s < active_min * 60:
            key = named("pause_when.user_active_min")
            return WhyPaused("user_active", f"somebody uses the machine ({key})")
        return self._by_heat(reading) or self._by_power(reading, now_ms)

    def _by_heat(self, reading: HardwareReading) -> WhyPaused | None:
        limit_c, temp_c = self._limits.temp_max_c, reading.gpu_temp_c
        if limit_c is None or temp_c is None:
            return None
        is_cooling = self._held is not None and self._held.code == "temp_max_c"
        if temp_c > limit_c or (is_cooling and temp_c > limit_c - COOL_C):
            key = self._settings.named("temp_max_c")
            return WhyPaused("temp_max_c", f"the GPU has {temp_c:.0f} of {limit_c:g} °C ({key})")
        return None

    def _by_power(self, reading: HardwareReading, now_ms: int) -> WhyPaused | None:
        """Where the driver does not hold the limit, the node rests a minute after drawing more for
        some seconds."""
        limit_w, power_w = self._limits.power_limit_w, reading.power_w
        if limit_w is None or power_w is None:
            return None
        if power_w <= limit_w * POWER_SHARE:
            self._hot_since_ms = None
        elif self._hot_since_ms is None:
            self._hot_since_ms = now_ms
        elif now_ms - self._hot_since_ms >= POWER_MS:
            self._power_until_ms = now_ms + POWER_REST_MS
        if now_ms < self._power_until_ms:
            key = self._settings.named("power_limit_w")
            return WhyPaused("power_limit_w", f"the GPU drew more than {limit_w:g} W ({key})")
        return None


def unwatched(settings: OwnerSettings, reading: HardwareReading) -> tuple[str, ...]:
    """Rules that are set and cannot be watched on this machine, each as a sentence."""
    limits, rules, named = settings.limits, settings.limits.pause_when, settings.named
    lacking = (
        (
            "pause_when.other_gpu_process_mb",
            rules.other_gpu_process_mb is not None and reading.other_gpu_process_mb is None,
            "no NVIDIA driver answers",
        ),
        (
            "pause_when.battery",
            rules.battery and reading.is_on_battery is None,
            "this machine has no battery",
        ),
        (
            "pause_when.user_active_min",
            rules.user_active_min is not None and reading.user_idle_s is None,
            "neither logind nor a terminal tells when somebody was here",
        ),
        (
            "pause_when.fullscreen",
            rules.fullscreen and reading.is_fullscreen is None,
            "there is no X display, or xprop is not installed",
        ),
        (
            "temp_max_c",
            limits.temp_max_c is not None and reading.gpu_temp_c is None,
            "no NVIDIA driver answers",
        ),
        (
            "power_limit_w",
            limits.power_limit_w is not None and reading.power_w is None,
            "no NVIDIA driver answers",
        ),
    )
    return tuple(
        f"{named(key)} is not watched: {why}" for key, is_lacking, why in lacking if is_lacking
    )


def _asked(pause: Pause) -> WhyPaused:
    if pause.until_unix_ms is None:
        return WhyPaused("owner", "its owner paused it; `plait node resume` lifts that")
    until = datetime.fromtimestamp(pause.until_unix_ms / 1_000).astimezone()
    return WhyPaused("owner", f"its owner paused it until {until:%Y-%m-%d %H:%M}")


def _duration(minutes: int) -> str:
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02} min" if hours else f"{rest} min"
