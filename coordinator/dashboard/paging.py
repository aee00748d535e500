"""Long lists: what an address asks for, the form that asks for it, and the way to the next page."""

import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from coordinator.dashboard.assets import MOUNT_PATH
from coordinator.dashboard.figures import count
from coordinator.dashboard.markup import text

PAGE_SIZE: Final = 50
PAGE_MAX: Final = 100_000
VALUE_CHARS_MAX: Final = 128
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A page of a list, from 1 on, and what the list is narrowed to, by name; "" for no limit."""

    path: str
    page: int
    filters: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """What a filter is set to."""
        return dict(self.filters).get(name, "")

    @property
    def offset(self) -> int:
        return (self.page - 1) * PAGE_SIZE

    def cut(self, items: Sequence[T]) -> Sequence[T]:
        """The page's part of a whole list."""
        return items[self.offset : self.offset + PAGE_SIZE]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A filter: free text where `options` (value, title) are empty."""

    name: str
    title: str
    options: tuple[tuple[str, str], ...] = ()
    placeholder: str = ""


def wanted_of(path: str, params: Mapping[str, str], names: Iterable[str]) -> Wanted:
    """What a request's query asks for; nonsense asks for the first page of everything."""
    raw = params.get("page", "1")
    page = int(raw) if raw.isdecimal() and len(raw) <= 6 else 1
    return Wanted(
        path=path,
        page=min(max(1, page), PAGE_MAX),
        filters=tuple((name, params.get(name, "")[:VALUE_CHARS_MAX].strip()) for name in names),
    )


def address(path: str, **query: str | int) -> str:
    """A page of the dashboard."""
    given = {name: value for name, value in query.items() if value not in ("", None)}
    asked = f"?{urllib.parse.urlencode(given)}" if given else ""
    return f"{MOUNT_PATH}/{urllib.parse.quote(path)}{asked}"


def filter_form(wanted: Wanted, choices: Sequence[Choice]) -> str:
    """A plain form: its address can be kept, sent and gone back from."""
    is_narrowed = any(value for _, value in wanted.filters)
    clear = (
        f'<a class="btn btn-quiet" href="{text(address(wanted.path))}">Show all</a>'
        if is_narrowed
        else ""
    )
    fields = "".join(_field(choice, wanted.get(choice.name)) for choice in choices)
    return (
        f'<form class="form filters" method="get" action="{text(address(wanted.path))}" '
        f'data-native role="search">{fields}<button class="btn">Filter</button>{clear}</form>'
    )


def pager(wanted: Wanted, total: int) -> str:
    """Where the page stands, and links to its neighbours; nothing where all fits on one."""
    if total <= PAGE_SIZE and wanted.page == 1:
        return ""
    last = max(1, -(-total // PAGE_SIZE))
    first_item, last_item = wanted.offset + 1, min(total, wanted.offset + PAGE_SIZE)
    where = (
        f"{count(first_item)}\u2013{count(last_item)} of {count(total)}"
        if first_item <= total
        else f"page {wanted.page} of {last}"
    )
    return (
        f'<nav class="pager" aria-label="Pages of the list">{_step(wanted, "Previous", -1, last)}'
        f'<span class="pager-where">{where}</span>{_step(wanted, "Next", 1, last)}</nav>'
    )


def _step(wanted: Wanted, label: str, by: int, last: int) -> str:
    page = wanted.page + by
    if not 1 <= page <= last:
        return f'<span class="btn btn-quiet" aria-disabled="true">{label}</span>'
    href = address(wanted.path, **dict(wanted.filters), page=page)
    return f'<a class="btn btn-quiet" href="{text(href)}">{label}</a>'


def _field(choice: Choice, value: str) -> str:
    if not choice.options:
        return (
            f'<label>{text(choice.title)}<input name="{choice.name}" value="{text(value)}" '
            f'maxlength="{VALUE_CHARS_MAX}" autocomplete="off" spellcheck="false" '
            f'placeholder="{text(choice.placeholder)}"></label>'
        )
    drawn = "".join(
        f'<option value="{text(each)}"{" selected" if each == value else ""}>{text(title)}</option>'
        for each, title in (("", "any"), *choice.options)
    )
    return f'<label>{text(choice.title)}<select name="{choice.name}">{drawn}</select></label>'
