"""The models that the gateway serves."""

from collections.abc import Iterable
from typing import Final

from plait.errors import ModelError
from plait.types import ModelId, ModelSpec


class Catalogue:
    """Models in the operator's order."""

    def __init__(self, specs: Iterable[ModelSpec]) -> None:
        self.specs: Final = {spec.model_id: spec for spec in specs}

    def find(self, model_id: str) -> ModelSpec:
        """The model of that name; empty means the only one. Raises ModelError with the list."""
        if not model_id and len(self.specs) == 1:
            return next(iter(self.specs.values()))
        spec = self.specs.get(ModelId(model_id))
        if spec is None:
            served = ", ".join(self.specs) or "none"
            what = f"model {model_id!r} is not served here" if model_id else "no model was named"
            raise ModelError(f"{what}; served: {served}")
        return spec
