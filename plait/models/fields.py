"""Typed access to what strangers wrote: config.json and GGUF metadata."""

from collections.abc import Mapping
from dataclasses import dataclass

from plait.errors import ModelError


@dataclass(frozen=True, slots=True)
class Fields:
    """Values by name. `where` names their file in errors. Every getter raises ModelError."""

    values: Mapping[str, object]
    where: str

    def has(self, key: str) -> bool:
        """Whether `key` is there and not null."""
        return self.values.get(key) is not None

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """An integer from 1 to 2^31 - 1."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise self._wrong(key, "a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number")
        if not 0.0 < float(value) < float("inf"):
            raise self._wrong(key, "a finite number above zero")
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers above zero."""
        values = self._value(key, None)
        if not isinstance(values, list) or not all(
            isinstance(v, int | float) and not isinstance(v, bool) and 0.0 < float(v) < float("inf")
            for v in values
        ):
            raise self._wrong(key, "a list of numbers above zero")
        return tuple(float(value) for value in values)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def section(self, key: str) -> "Fields | None":
        """A nested object, None where it is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return Fields(value, f"{self.where} ({key})")

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id or a list of ids; empty where absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise self._wrong(key, "token ids")
        return tuple(ids)

    def _value(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise ModelError(f"{self.where} does not say {key!r}", reason="model_config_invalid")
        return default

    def _wrong(self, key: str, wanted: str) -> ModelError:
        found = repr(self.values.get(key))[:80]
        return ModelError(
            f"{self.where}: {key!r} should be {wanted}, not {found}", reason="model_config_invalid"
        )
