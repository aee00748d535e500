"""Log lines go to today's standard error, in the form that was asked for."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr

import pytest
import structlog

from plait import log


@pytest.fixture(autouse=True)
def _fresh_structlog() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def test_lines_follow_standard_error_when_it_is_replaced() -> None:
    first, second = io.StringIO(), io.StringIO()
    with redirect_stderr(first):
        log.configure(as_json=True)
        logger = log.get("test")
        logger.info("node_joined", node_id="n1")
    first.close()
    with redirect_stderr(second):
        logger.warning("node_lost", node_id="n1")
    line = json.loads(second.getvalue())
    assert line["event"] == "node_lost"
    assert line["component"] == "test"
    assert line["node_id"] == "n1"
    assert line["level"] == "warning"


def test_what_is_below_the_level_is_silent() -> None:
    out = io.StringIO()
    with redirect_stderr(out):
        log.configure(level="warning")
        log.get("test").info("node_joined")
    assert out.getvalue() == ""
    assert sys.stderr is not out
