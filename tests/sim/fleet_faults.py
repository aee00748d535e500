"""What happens to a fleet: each seed draws its own mixture."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFaults:
    """Chances per second of a node, or of the network, or per occasion; times in milliseconds.

    `leave_per_s` is the churn: of those that leave, a part does so in order (`drains`), a part
    dies and its kernel says so (`is_noticed`), the rest fall silent.
    """

    leave_per_s: float = 0.0
    drains: float = 0.0
    is_noticed: float = 1.0
    absence_ms: tuple[int, int] = (2_000, 20_000)
    freeze_per_s: float = 0.0
    freeze_ms: tuple[int, int] = (500, 9_000)
    control_drop_per_s: float = 0.0
    gateway_drop_per_s: float = 0.0
    link_drop_per_s: float = 0.0
    partition_per_s: float = 0.0
    cut_off_per_s: float = 0.0
    one_way: float = 0.0
    slow_per_s: float = 0.0
    slowness: float = 10.0
    load_fails: float = 0.0
    solver_hangs: float = 0.0
    solver_ms_max: int = 300
    restart_per_s: float = 0.0
    outage_ms: tuple[int, int] = (500, 6_000)
    client_leaves: float = 0.0
    client_breaks: float = 0.0
    clients_resume: float = 1.0
    delay_ms: float = 3.0
    clock_offset_ms: int = 0
    clock_jump_per_s: float = 0.0
    clock_jump_ms: int = 0

    @property
    def any_per_s(self) -> float:
        """More than this, and nothing happens to a node in this second."""
        return 1e-9 + (
            self.leave_per_s
            + self.freeze_per_s
            + self.control_drop_per_s
            + self.gateway_drop_per_s
            + self.link_drop_per_s
            + self.partition_per_s
            + self.cut_off_per_s
            + self.slow_per_s
        )

    @classmethod
    def draw(
        cls, rng: Random, *, leave_per_s: float = 0.005, later: Random | None = None
    ) -> "FleetFaults":
        """30 % of nodes leave each minute by default; the rest differs from seed to seed. Faults
        that were added later come from `later`, so that seeds keep the mixture that they had."""
        later = later if later is not None else Random(0)
        return cls(
            leave_per_s=leave_per_s,
            drains=rng.choice([0.0, 0.3, 0.9]),
            is_noticed=rng.choice([0.0, 0.5, 1.0]),
            absence_ms=rng.choice([(300, 3_000), (2_000, 20_000), (10_000, 40_000)]),
            freeze_per_s=rng.choice([0.0, 0.0, 0.002, 0.01]),
            control_drop_per_s=rng.choice([0.0, 0.002, 0.01]),
            gateway_drop_per_s=rng.choice([0.0, 0.002, 0.01]),
            link_drop_per_s=rng.choice([0.0, 0.005, 0.02]),
            partition_per_s=rng.choice([0.0, 0.0, 0.002]),
            cut_off_per_s=rng.choice([0.0, 0.0, 0.002]),
            one_way=rng.choice([0.0, 0.5]),
            slow_per_s=rng.choice([0.0, 0.001]),
            load_fails=rng.choice([0.0, 0.05]),
            solver_hangs=rng.choice([0.0, 0.05]),
            solver_ms_max=rng.choice([100, 3_000]),
            restart_per_s=rng.choice([0.0, 0.0, 0.01]),
            client_leaves=rng.choice([0.0, 0.1]),
            client_breaks=rng.choice([0.0, 0.15]),
            clients_resume=rng.choice([0.7, 1.0]),
            delay_ms=rng.choice([1.0, 5.0, 40.0]),
            clock_offset_ms=rng.choice([0, 900_000]),
            clock_jump_per_s=later.choice([0.0, 0.02, 0.1]),
            clock_jump_ms=later.choice([5_000, 600_000, 3_600_000]),
        )
