"""What a node makes of its owner's settings: device, memory, addresses."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from node.config import NodeConfig
from node.core.events import ModelOffered
from node.engine.device import Device, pick_device
from node.engine.memory import plan_memory
from node.owner.limits import GB
from plait.errors import ConfigError, OverloadedError
from plait.types import KvDtype, LayerSpan, Reason
from plait.wire.reach import Address

STEP_TOKENS: Final = 256
"""Prefill rows whose buffers any node needs; a GPU's steps have more."""


def pick_allowed(config: NodeConfig) -> Device:
    """The device to compute on: the one asked for, or the first that the owner allows and that is
    there. Raises ConfigError."""
    limits = config.owner.limits
    names = (config.device,) if config.device != "auto" else limits.devices or ("auto",)
    error: ConfigError | None = None
    for name in names:
        try:
            device = pick_device(name, config.compute_dtype)
        except ConfigError as found:
            error = error or found
            continue
        reserve_gb = limits.vram_reserve_gb or 0.0
        return replace(device, reserve_bytes=int(reserve_gb * GB), kv_dtype=kv_dtype_of(config))
    assert error is not None, "there is always a name"
    raise error


def kv_dtype_of(config: NodeConfig) -> KvDtype:
    """What keys and values are kept in; "auto" is the compute dtype."""
    asked = config.kv_dtype if config.kv_dtype != "auto" else config.owner.limits.kv_dtype or "auto"
    return KvDtype.NATIVE if asked == "auto" else KvDtype(asked)


def memory_limit(config: NodeConfig, device_kind: str) -> int | None:
    """Most bytes of the engine on this kind of device; None: what is free."""
    given = (config.memory_bytes, config.owner.limits.memory_max_bytes(device_kind))
    return min((limit for limit in given if limit is not None), default=None)


def too_small(config: NodeConfig, device: Device, models: Sequence[ModelOffered]) -> Reason | None:
    """Why no layer of any model fits into what the owner gives, and how much is missing; None where
    one does, or where the owner limits nothing."""
    limit_bytes = config.owner.limits.memory_max_bytes(device.kind)
    if limit_bytes is None or not models:
        return None
    lack = ""
    for offer in models:
        last = offer.spec.num_layers - 1
        middle = min(1, last)
        try:
            plan_memory(
                offer.spec,
                LayerSpan(middle, middle + 1),
                device.compute_dtype,
                usable_bytes=limit_bytes,
                kv_tokens_min=1,
                kv_tokens_max=1,
                step_tokens_max=STEP_TOKENS,
                packs_weights=True,
                kv_dtype=device.kv_dtype,
            )
        except OverloadedError as error:
            lack = error.message
        else:
            return None
    key = "vram_max_gb" if device.kind == "cuda" else "ram_max_gb"
    return Reason(
        code="limits_too_low",
        message=f"{config.owner.named(key)} is too low for even one layer of what this network "
        f"serves: {lack}",
    )


def own_addresses(config: NodeConfig, port: int) -> tuple[str, ...]:
    """Where neighbours may dial this node; an empty host is filled in by the coordinator."""
    if config.advertise:
        return tuple(str(Address.parse(given, default_port=port)) for given in config.advertise)
    host = config.listen.rpartition(":")[0]
    return (f":{port}" if host in ("", "0.0.0.0", "[::]") else f"{host}:{port}",)
