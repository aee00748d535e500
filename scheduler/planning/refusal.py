"""Why a pool holds no replica, and what would help."""

import math
from collections.abc import Sequence

from plait.errors import UnavailableError
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.kinds import MachineClass
from scheduler.planning.patterns import make_patterns


def refusal(ground: Ground, classes: Sequence[MachineClass], wish: Wish) -> UnavailableError:
    """Why no replica fits."""
    everything = [list(range(len(classes)))]
    free_wish = Wish(stages_max=None, tpot_s_max=None, time_limit_s=wish.time_limit_s)
    possible = make_patterns(ground, classes, everything, free_wish)
    if not possible:
        return _shortage(ground)
    if wish.stages_max is not None:
        least = min(len(p.order) for p in possible)
        if least > wish.stages_max:
            return UnavailableError(
                f"no chain of at most {wish.stages_max} stages holds the model; the shortest "
                f"has {least}",
                reason="slo_infeasible",
            )
        limited = Wish(stages_max=wish.stages_max, time_limit_s=wish.time_limit_s)
        possible = make_patterns(ground, classes, everything, limited)
    nearest_ms = 1e3 * min(p.tpot_s for p in possible)
    asked_ms = 1e3 * (wish.tpot_s_max or 0.0)
    return UnavailableError(
        f"no chain gives a token every {asked_ms:.1f} ms; the nearest feasible is "
        f"{math.ceil(nearest_ms * 10) / 10:.1f} ms",
        reason="slo_infeasible",
    )


def _shortage(ground: Ground) -> UnavailableError:
    """How much memory is missing."""
    room = sum(m.layers_max(is_first=False, is_last=False) for m in ground.machines)
    most = max(ground.machines, key=lambda m: (m.room_bytes, m.node_id))
    layer_bytes = most.layer_bytes + (most.kv_sequence_bytes if most.kv_bytes is None else 0.0)
    missing = max(1.0, ground.num_layers - room) * layer_bytes
    if room >= ground.num_layers:
        missing = most.first_bytes + most.last_bytes
    share = most.room_bytes / (most.room_bytes + (most.kv_bytes or 0.0))
    return UnavailableError(
        f"not enough memory: {len(ground.machines)} nodes hold at most {room} of "
        f"{ground.num_layers} layers beside the embedding and the LM head; "
        f"{missing / 2**30:.1f} GiB of weights are missing, that is nodes of "
        f"{missing / share / 2**30:.1f} GiB more",
        reason="not_enough_memory",
    )
