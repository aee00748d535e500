"""Words of the code that the pages use are the code's: error codes, fields, settings."""

import re
from pathlib import Path
from typing import Final

import pytest

from node.owner.limits import SETTINGS
from node.owner.settings import read_settings
from tests.unit.docs.pages import PAGES, ROOT, codes

SOURCES: Final = ("plait", "node", "coordinator", "scheduler", "protos", "docker")
OTHERS: Final = {"prompt_or_messages", "extra_body", "desc_act", "im_start"}
"""What stands for several arguments, and words of other programs, files and models."""

INSIDE: Final = frozenset(
    ["annotations", "call_id", "description", "input_schema", "is_error", "output", "tool_use_id"]
)
"""Fields inside of items, which the APIs' own pages explain."""


def words_of_the_code() -> set[str]:
    found: set[str] = set()
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".proto", ".conf"):
                found.update(re.findall(r"\w+", path.read_text("utf-8")))
    return found


def test_words_with_an_underscore_are_the_codes() -> None:
    known = words_of_the_code() | OTHERS
    faults = [
        f"{code}: {word}"
        for page in PAGES
        for code in codes(page)
        if not code.is_block
        for word in re.findall(r"(?<![\w/.-])[a-z]+(?:_[a-z]+)+(?![\w/*-])", code.text)
        if word not in known and not word.startswith(("plait_", "test_"))
    ]
    assert not faults, "\n".join(faults)


def test_fields_that_the_http_door_reads_are_spoken_of() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    for path in (ROOT / "coordinator" / "gateway").glob("*.py"):
        for name in re.findall(r'reader\.(?:take|require)\(\s*"(\w+)"', path.read_text("utf-8")):
            assert name in INSIDE or re.search(rf"\b{name}\b", page), f"{path.name}: {name}"


def test_limits_as_the_page_shows_them_are_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "volunteering.md").read_text("utf-8")
    (shown,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "node.toml").write_text(shown, "utf-8")
    settings = read_settings(tmp_path / "node.toml", environ={})
    assert set(settings.sources) == set(SETTINGS)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_pages_stay_short(page: Path) -> None:
    assert len(page.read_text("utf-8").splitlines()) <= 400
