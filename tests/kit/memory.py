"""How much memory makes a chain need exactly so many nodes."""

import bisect

from plait.types import DType, ModelSpec
from scheduler.cost import role_bytes


def cap_for_stages(spec: ModelSpec, num_stages: int, kv_tokens: int) -> int | None:
    """Bytes with which `num_stages` equal nodes hold the model in fp32 and one node fewer cannot: a
    quarter of the way from the first bound to the second, so that KV is scarce as well. None for
    one stage: it may hold all.

    `kv_tokens` are the slots that the coordinator asks of every stage. Raises ValueError for more
    stages than there are layers, and where the ends weigh so much that fewer nodes need no more.
    """
    if num_stages == 1:
        return None
    if num_stages > spec.num_layers:
        raise ValueError(f"{spec.num_layers} layers need no {num_stages} nodes")
    enough = _least_bytes(spec, num_stages, kv_tokens)
    too_much = _least_bytes(spec, num_stages - 1, kv_tokens)
    if enough >= too_much:
        raise ValueError(f"what holds {num_stages} stages holds {num_stages - 1} too")
    return enough + (too_much - enough) // 4


def bytes_for_whole(spec: ModelSpec, kv_tokens: int) -> int:
    """Just enough for one node to hold the whole model in fp32 with that much KV."""
    return _least_bytes(spec, 1, kv_tokens)


def _least_bytes(spec: ModelSpec, num_stages: int, kv_tokens: int) -> int:
    """The smallest cap with which a chain of `num_stages` holds all layers."""
    dtype = DType.FLOAT32
    kv_tokens = min(kv_tokens, spec.context_tokens_max)
    layer_bytes = spec.layer_bytes(dtype) + kv_tokens * spec.kv_bytes_per_token(1, dtype)
    ends = [(index == 0, index == num_stages - 1) for index in range(num_stages)]
    roles = [role_bytes(spec, dtype, is_first=first, is_last=last) for first, last in ends]

    def holds(cap_bytes: int) -> bool:
        layers = [(cap_bytes - role) // layer_bytes for role in roles]
        return min(layers) >= 1 and sum(layers) >= spec.num_layers

    bounds = range(max(roles) + (spec.num_layers + 1) * layer_bytes)
    return bisect.bisect_left(bounds, 1, key=lambda cap_bytes: int(holds(cap_bytes)))
