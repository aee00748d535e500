"""The operator's snapshot and its requests, back from JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Final, TypeVar

from coordinator.core.view import (
    ChainView,
    CountersView,
    DecisionView,
    DepartedView,
    HopView,
    MeasuredHopView,
    ModelView,
    NetworkView,
    NodeView,
    PlanChangeView,
    PlanView,
    RequestView,
)
from plait.errors import FrameError
from plait.types import DraftHealth, GuessTotals, StepTotals

_PARTS: Final = {
    "nodes": NodeView,
    "models": ModelView,
    "requests": RequestView,
    "plan": PlanView,
    "counters": CountersView,
    "route": HopView,
    "decisions": DecisionView,
    "considered": ChainView,
    "hops": MeasuredHopView,
    "steps": StepTotals,
    "guesses": GuessTotals,
    "draft": DraftHealth,
    "departed": DepartedView,
    "changes": PlanChangeView,
}
T = TypeVar("T")


def network_from_json(text: str) -> NetworkView:
    """The view behind `GetNetwork.view_json`. Raises FrameError for anything else.

    Fields of a newer coordinator are left out.
    """
    return _read(NetworkView, text)


def request_from_json(text: str) -> RequestView:
    """One request, as `request_to_json` wrote it or a view has it. Raises FrameError."""
    return _read(RequestView, text)


def request_to_json(request: RequestView) -> str:
    """For the store and the operator's door."""
    return json.dumps(asdict(request), ensure_ascii=False, separators=(",", ":"))


def _read(kind: type[T], text: str) -> T:
    try:
        return _build(kind, json.loads(text))
    except (TypeError, ValueError, AttributeError) as error:
        message = f"this coordinator's view cannot be read (another version?): {error}"
        raise FrameError(message, reason="view_unknown") from error


def _build(kind: type[T], content: Mapping[str, object]) -> T:
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: _part(name, item) for name, item in content.items() if name in known})


def _part(name: str, item: object) -> object:
    part = _PARTS.get(name)
    if part is not None and isinstance(item, dict):
        return _build(part, item)
    if part is not None and isinstance(item, list):
        return tuple(_build(part, each) for each in item)
    return _tuples(item)


def _tuples(item: object) -> object:
    return tuple(_tuples(each) for each in item) if isinstance(item, list) else item
