"""What one seed comes to."""

import gc
import time
import traceback
from dataclasses import dataclass
from random import Random

from tests.sim.fleet import Fleet

LAYERS_PER_NODE = 0.4
LAYERS = (16, 40)
KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all seeds of a run have in common."""

    nodes: tuple[int, int] = (50, 50)
    duration_ms: int = 600_000
    num_requests: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`verdict` is "kept", or the promise that was broken and where."""

    seed: int
    verdict: str
    digest: str
    num_nodes: int
    num_events: int
    num_restarts: int
    outcomes: dict[str, int]
    cpu_s: float

    @property
    def is_kept(self) -> bool:
        return self.verdict == KEPT

    @property
    def line(self) -> str:
        """For people."""
        return (
            f"seed {self.seed}: {self.verdict}, {self.num_nodes} nodes, {self.num_events} events, "
            f"{self.num_restarts} restarts, {self.cpu_s:.1f} s, {self.digest} {self.outcomes}"
        )


def fleet_of(seed: int, settings: Settings) -> Fleet:
    """Most fleets are small, few are large: what a large one costs grows with its square."""
    low, high = settings.nodes
    num_nodes = low + int((high - low + 1) * Random(f"nodes {seed}").random() ** 8)
    num_layers = min(LAYERS[1], max(LAYERS[0], int(num_nodes * LAYERS_PER_NODE)))
    return Fleet(
        seed,
        num_nodes=num_nodes,
        num_requests=settings.num_requests,
        duration_ms=settings.duration_ms,
        num_layers=num_layers,
    )


def run_seed(seed: int, settings: Settings) -> Verdict:
    """All of its life, and its end."""
    began_s = time.process_time()
    fleet = fleet_of(seed, settings)
    verdict = KEPT
    # Next to nothing of a run is garbage in cycles; looking for it is a seventh of the work.
    gc.disable()
    try:
        fleet.run()
        fleet.heal_and_finish()
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{at.filename}:{at.lineno}"
        verdict = f"at {fleet.clock.now_ms} ms: {type(error).__name__} {error} ({place})"[:400]
    finally:
        gc.enable()
    num_nodes = len(fleet.machines)
    result = Verdict(
        seed=seed,
        verdict=verdict,
        digest=fleet.digest.hexdigest()[:16],
        num_nodes=num_nodes,
        num_events=fleet.num_events,
        num_restarts=fleet.num_restarts,
        outcomes=dict(fleet.outcomes),
        cpu_s=round(time.process_time() - began_s, 2),
    )
    del fleet
    gc.collect()
    return result
