"""Structured logs for the shells: one line per state change, `event key=value`, never a prompt."""

import io
import logging
import sys

import structlog


def configure(*, level: str = "info", as_json: bool = False) -> None:
    """Route structlog to standard error. Call once, at the start of a process.

    Args:
        level: "debug", "info", "warning" or "error".
        as_json: one JSON object a line instead of coloured text.
    """
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(file=_StandardError()),
        cache_logger_on_first_use=True,
    )


def get(name: str) -> structlog.stdlib.BoundLogger:
    """A logger that stamps its lines with `component=name`."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(component=name)
    return logger


class _StandardError(io.StringIO):
    """Whatever standard error is at that moment: a progress line on a terminal replaces it."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()
