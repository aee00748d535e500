"""Fleets by the hundred: `python -m tests.sim.seeds --seeds 1000`. By hand; CI runs a few.

Prints every seed that breaks a promise, and a line of totals each minute of computing and at the
end. A seed that failed is replayed alone with `--first SEED --seeds 1`.
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from random import Random

from tests.sim.fleet import Fleet

LAYERS_PER_NODE = 0.4
LAYERS = (16, 40)


def fleet_of(seed: int, *, nodes: tuple[int, int], duration_ms: int, num_requests: int) -> Fleet:
    """Most fleets are small, few are large: what a large one costs grows with its square."""
    low, high = nodes
    num_nodes = low + int((high - low + 1) * Random(f"nodes {seed}").random() ** 8)
    num_layers = min(LAYERS[1], max(LAYERS[0], int(num_nodes * LAYERS_PER_NODE)))
    return Fleet(
        seed,
        num_nodes=num_nodes,
        num_requests=num_requests,
        duration_ms=duration_ms,
        num_layers=num_layers,
    )


def main() -> int:
    """How many seeds broke a promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--nodes", type=int, nargs=2, default=(50, 500))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--requests", type=int, default=60)
    asked = parser.parse_args()
    outcomes: Counter[str] = Counter()
    num_broken = num_nodes = num_events = 0
    said_s = time.process_time()
    for num_done, seed in enumerate(range(asked.first, asked.first + asked.seeds), 1):
        fleet = fleet_of(
            seed,
            nodes=(asked.nodes[0], asked.nodes[1]),
            duration_ms=int(asked.minutes * 60_000),
            num_requests=asked.requests,
        )
        try:
            fleet.run()
            fleet.heal_and_finish()
        except Exception as error:
            num_broken += 1
            at = traceback.extract_tb(error.__traceback__)[-1]
            _say(
                f"seed {seed}, {len(fleet.machines)} nodes, {fleet.clock.now_ms} ms: "
                f"{type(error).__name__} {error} ({at.filename}:{at.lineno})"[:300]
            )
        outcomes.update(fleet.outcomes)
        num_nodes += len(fleet.machines)
        num_events += fleet.num_events
        if time.process_time() - said_s > 60 or num_done == asked.seeds:
            said_s = time.process_time()
            _say(
                f"{num_done} seeds, {num_nodes / num_done:.0f} nodes each, {num_events} events, "
                f"{num_broken} broken, {said_s:.0f} s of computing: {dict(outcomes)}"
            )
    return num_broken


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(min(1, main()))
