"""A missing program is a skip that says what to install; in CI it is a failure."""

import re
from pathlib import Path

import pytest

from tests.kit.tools import REQUIRED, needs, without

CI = (Path(__file__).parents[3] / ".ci" / "run").read_text("utf-8")


def test_the_reason_names_the_package() -> None:
    assert (
        without("Chromium", "chromium", {}) == "Chromium is not installed: apt-get install chromium"
    )


def test_where_everything_is_installed_nothing_is_skipped() -> None:
    with pytest.raises(RuntimeError, match="apt-get install chromium"):
        without("Chromium", "chromium", {REQUIRED: "1"})
    assert needs("/usr/bin/chromium", "Chromium", "chromium").mark.args == (False,)


def test_ci_installs_what_it_may_not_miss() -> None:
    assert f"export {REQUIRED}=1" in CI
    installed = set(re.findall(r"packages\+=\(([\w-]+)\)", CI))
    assert {"chromium", "mosquitto", "postgresql"} <= installed
