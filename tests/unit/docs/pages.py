"""The pages as the tests read them: code, inline code, links and headings of Markdown."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
PAGES: Final = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
DECISIONS: Final = tuple(sorted((ROOT / "docs" / "decisions").glob("*.md")))
SHELL: Final = ("", "sh", "bash", "console")
"""Fences of these languages are command lines; others are programs and files."""


@dataclass(frozen=True, slots=True)
class Code:
    """A piece of code: a line of a block, or a span inside a sentence."""

    page: Path
    line: int
    text: str
    is_block: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: {self.text}"


def codes(page: Path, text: str | None = None) -> Iterator[Code]:
    """All code of a page: shell fences and indented blocks by line, with continued lines joined,
    and inline spans of everything else. Fences of programs are left out."""
    fence: str | None = None
    joined, before = "", ""
    for number, line in enumerate((text or page.read_text("utf-8")).splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fence = line.strip().strip("`").strip() if fence is None else None
        elif fence in SHELL or (fence is None and is_indented(line, before)):
            joined += line.strip()
            if joined.endswith("\\"):
                joined = joined[:-1]
            elif joined:
                yield Code(page, number, joined, is_block=True)
                joined = ""
        elif fence is None:
            for span in re.findall(r"`([^`]+)`", line):
                yield Code(page, number, span.replace("\\|", "|"), is_block=False)
        before = line


def is_indented(line: str, before: str) -> bool:
    """A block by indentation begins behind an empty line, outside of a list."""
    return line.startswith("    ") and (not before.strip() or before.startswith("    "))


def slugs(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in headings}


def links(page: Path) -> list[str]:
    """Targets of links to places of this repository, with their anchors."""
    text = re.sub(
        r"```.*?```|^    .*$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "`", text))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]
