"""Swarm-style knobs: every seed draws its own mixture of troubles."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Chances per second or per occasion, and times in milliseconds."""

    crash_per_s: float = 0.0
    crash_is_noticed: float = 1.0
    freeze_per_s: float = 0.0
    control_drop_per_s: float = 0.0
    gateway_drop_per_s: float = 0.0
    hop_break_per_s: float = 0.0
    drain_per_s: float = 0.0
    load_fails: float = 0.0
    duplicate: float = 0.0
    delay_ms: float = 5.0
    break_is_noticed: float = 1.0
    cancel: float = 0.0
    solver_lies: float = 0.0
    solver_fails: float = 0.0
    solver_hangs: float = 0.0
    solver_ms_max: int = 300

    @classmethod
    def draw(cls, rng: Random) -> "Faults":
        """A mixture; most seeds have several kinds at once."""
        return cls(
            crash_per_s=rng.choice([0.0, 0.002, 0.01, 0.03]),
            crash_is_noticed=rng.choice([0.0, 0.5, 1.0]),
            freeze_per_s=rng.choice([0.0, 0.005, 0.02]),
            control_drop_per_s=rng.choice([0.0, 0.01, 0.03]),
            gateway_drop_per_s=rng.choice([0.0, 0.01, 0.03]),
            hop_break_per_s=rng.choice([0.0, 0.01]),
            drain_per_s=rng.choice([0.0, 0.005]),
            load_fails=rng.choice([0.0, 0.1, 0.5]),
            duplicate=rng.choice([0.0, 0.05]),
            delay_ms=rng.choice([1.0, 10.0, 150.0]),
            break_is_noticed=rng.random(),
            cancel=rng.choice([0.0, 0.1]),
            solver_lies=rng.choice([0.0, 0.3]),
            solver_fails=rng.choice([0.0, 0.3]),
            solver_hangs=rng.choice([0.0, 0.1]),
            solver_ms_max=rng.choice([100, 6_000]),
        )
