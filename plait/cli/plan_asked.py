"""Which models a plan is for, and how they share the pool."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plait.errors import ConfigError

if TYPE_CHECKING:
    from plait.types import ModelId, ModelSpec, WeightFormat

MODELS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says of models: names as typed, weights and least chains by those
    names, KV slots, and a plan that was made before."""

    models: tuple[str, ...]
    demand: tuple[tuple[str, float], ...] = ()
    replicas_min: tuple[tuple[str, int], ...] = ()
    kv_tokens: int | None = None
    current: Path | None = None

    def only(self, what: str) -> str | None:
        """The one model, None where none is named. Raises ConfigError: several."""
        if len(self.models) > 1:
            raise ConfigError(f"{what} for one --model at a time, not {len(self.models)}")
        return self.models[0] if self.models else None


def asked_of(
    models: Sequence[str],
    demand: Sequence[str],
    *,
    replicas_min: Sequence[str] = (),
    kv_tokens: int | None = None,
    current: Path | None = None,
) -> Asked:
    """Checked. Raises ConfigError: a model twice, weights of models that are not planned."""
    from coordinator.config import parse_counts, parse_weights

    twice = [name for name in models if models.count(name) > 1]
    if twice:
        raise ConfigError(f"--model {twice[0]} is named twice")
    if len(models) > MODELS_MAX:
        raise ConfigError(f"{len(models)} models: plans are for {MODELS_MAX} at most")
    weights = parse_weights(",".join(demand), flag="--demand")
    counts = parse_counts(",".join(replicas_min), flag="--min-replicas")
    _check_names([name for name, _ in weights], models, flag="--demand")
    _check_names([name for name, _ in counts], models, flag="--min-replicas")
    if weights and len(models) == 1:
        raise ConfigError("--demand shares a pool between models: name several with --model")
    return Asked(
        models=tuple(models),
        demand=weights,
        replicas_min=counts,
        kv_tokens=kv_tokens,
        current=current,
    )


def _check_names(names: Sequence[str], models: Sequence[str], *, flag: str) -> None:
    for name in names:
        if name not in models:
            known = ", ".join(models) or "none"
            raise ConfigError(f"{flag} {name}: it is no --model of this plan ({known})")
        if names.count(name) > 1:
            raise ConfigError(f"{flag} {name} is said twice")


def parts_of(asked: Asked) -> tuple[float, ...]:
    """Each model's part of what is asked, all together 1; equal parts where nothing is said. Raises
    ConfigError where some are left out: to be asked for as often as the least is rarely meant."""
    weights = dict(asked.demand)
    left = [name for name in asked.models if name not in weights]
    if weights and left:
        raise ConfigError(f"--demand says nothing of {left[0]}: give every model a weight")
    total = sum(weights.values())
    return tuple(weights[n] / total if weights else 1 / len(asked.models) for n in asked.models)


def specs_of(asked: Asked, weight_format: "WeightFormat") -> dict[str, "ModelSpec"]:
    """What is known of each model, by the name that was typed. Raises ConfigError: none, or two
    names of one model; ModelError."""
    from plait.models.naming import resolve
    from plait.models.opening import load_spec

    if not asked.models:
        raise ConfigError("which model? Name one with --model, or several, each with its own")
    found: dict[str, ModelSpec] = {}
    seen: dict[ModelId, str] = {}
    for name in asked.models:
        spec = replace(load_spec(resolve(name)), weight_format=weight_format)
        if spec.model_id in seen:
            raise ConfigError(
                f"--model {seen[spec.model_id]} and --model {name} are one model, {spec.model_id}"
            )
        seen[spec.model_id] = name
        found[name] = spec
    return found


def replicas_of(asked: Asked, specs: dict[str, "ModelSpec"]) -> "tuple[tuple[ModelId, int], ...]":
    """Least chains by what models are called."""
    return tuple((specs[name].model_id, count) for name, count in asked.replicas_min)


def demand_of(asked: Asked, specs: dict[str, "ModelSpec"]) -> "tuple[tuple[ModelId, float], ...]":
    """Weights by what models are called. Raises ConfigError as `parts_of` does."""
    parts_of(asked)
    return tuple((specs[name].model_id, weight) for name, weight in asked.demand)
