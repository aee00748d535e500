"""What a command needs beside the plain installation: looked for before it does anything."""

import importlib.util
from collections.abc import Mapping
from typing import Final

from plait.errors import ConfigError

_MODELS: Final = ("filelock", "gguf", "httpx", "huggingface_hub", "numpy", "safetensors")
EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "models": _MODELS,
    "node": (*_MODELS, "aiomqtt", "llguidance", "llvmlite", "pynvml", "psutil", "torch"),
    "coordinator": (
        *_MODELS,
        "aiomqtt",
        "aiosqlite",
        "amqtt",
        "fastapi",
        "highspy",
        "jinja2",
        "llguidance",
        "nicegui",
        "prometheus_client",
        "pulp",
        "sqlalchemy",
        "tokenizers",
        "uvicorn",
    ),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
"""Modules by extra, as in pyproject.toml."""


def needs(*extras: str) -> None:
    """Raises ConfigError(reason="not_installed") that says what to install where a package of
    `extras` is missing."""
    for extra in extras:
        missing = [name for name in EXTRAS[extra] if not _is_there(name)]
        if missing:
            raise ConfigError(
                f"this command needs {', '.join(missing)}, not installed here: in plait's folder, "
                f"run pip install '.[{','.join(extras)}]'",
                reason="not_installed",
            )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # what it would be a part of
        return False
