"""A walk through every page of a dashboard: looked at in both themes and two widths, held against
axe-core, and every button pressed."""

import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

SHOTS: Final = Path(__file__).parents[2] / "build" / "dashboard"
WIDTHS: Final = {1440: 900, 390: 844}
Theme = Literal["light", "dark"]
LOOKS: Final[tuple[tuple[Theme, int], ...]] = (
    ("light", 1440),
    ("dark", 1440),
    ("dark", 390),
    ("light", 390),
)
"""In an order that lays a page out anew as seldom as can be; it ends in the theme it began in."""
SERIOUS: Final = frozenset({"serious", "critical"})
Hosts = set[str]


def watch_hosts(page: Page) -> tuple[Hosts, list[str]]:
    """Every host:port that the page asks from now on, and every script that fails."""
    hosts, errors = Hosts(), list[str]()

    def note(url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("data", "blob"):
            hosts.add(parts.netloc)

    page.on("request", lambda request: note(request.url))
    page.on("websocket", lambda socket: note(socket.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    return hosts, errors


def open_page(page: Page, url: str) -> None:
    """Until what is seen can be pressed."""
    page.goto(url)
    expect(page.locator("#first-paint")).to_have_count(0)
    expect(page.locator("h1")).to_have_count(1)


def look_at(page: Page, url: str, name: str) -> Iterator[str]:
    """Open a page and keep pictures of it; what axe finds serious, and what runs over the edge."""
    open_page(page, url)
    page.evaluate(Axe().axe_script)
    SHOTS.mkdir(parents=True, exist_ok=True)
    for theme, width in LOOKS:
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        page.set_viewport_size({"width": width, "height": WIDTHS[width]})
        path = SHOTS / f"{name}-{theme}-{width}.png"
        page.screenshot(path=path, full_page=(theme, width) == ("light", 1440))
        seen = page.evaluate("document.documentElement.scrollWidth")
        if seen > width:
            yield f"{name}, {width} px wide: runs to {seen} px"
        if width == 390:
            yield from _axe_faults(page, theme, name)
    page.set_viewport_size({"width": 1440, "height": 900})


def _axe_faults(page: Page, theme: Theme, name: str) -> Iterator[str]:
    """What is serious; of what fits, axe need not tell."""
    options: dict[str, list[str]] = {"resultTypes": ["violations"]}
    if theme != "light":
        options["runOnly"] = ["color-contrast"]  # a theme changes colours and nothing else
    for fault in page.evaluate("(o) => axe.run(o).then((found) => found.violations)", options):
        if fault["impact"] in SERIOUS:
            yield f"{name}, {theme}: {fault['id']}: {fault['nodes'][0]['html'][:200]}"


def by_keyboard(page: Page, root: str) -> None:
    """The first stop is the way past the navigation, and where the focus is can be seen."""
    open_page(page, f"{root}/")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    style = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(style) != "none"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def press_twice(page: Page, name: str, *, within: str = "body") -> None:
    """A button that asks for a second press, pressed by keyboard."""
    button = page.locator(within).get_by_role("button", name=name).first
    button.focus()
    page.keyboard.press("Enter")
    armed = page.locator(f"{within} [data-armed]")
    expect(armed).to_have_count(1)
    page.keyboard.press("Enter")


def make_and_revoke_a_token(page: Page, root: str) -> None:
    """The line is there to copy, and is not there again."""
    open_page(page, f"{root}/enrolment")
    page.get_by_label("Whose machine").fill("a visitor")
    page.get_by_role("button", name="Create token").click()
    expect(page.locator("#secret")).to_contain_text("plait node join")
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    row = page.locator("tbody tr", has_text="a visitor")
    row.get_by_role("button").click()
    row.get_by_role("button").click()
    expect(row.locator(".chip")).to_have_text("revoked")


def make_weigh_and_revoke_a_key(page: Page, root: str) -> None:
    """A key with half a weight that gets another, and goes."""
    open_page(page, f"{root}/keys")
    page.get_by_label("Whose key").fill("a program")
    page.get_by_label("Weight in the queue").first.fill("0.5")
    page.get_by_label("Requests a minute").first.fill("7")
    page.get_by_role("button", name="Create key").click()
    expect(page.locator("#secret")).to_be_visible()
    row = page.locator("tbody tr", has_text="a program")
    expect(row).to_contain_text("weight 0.5")
    expect(row).to_contain_text("7 requests a minute")
    page.locator("[data-action=limit-key] select").first.select_option(label="a program, 0.5")
    page.locator("[data-action=limit-key]").get_by_label("Tokens a minute").fill("900")
    page.get_by_role("button", name="Change limits").click()
    expect(row).to_contain_text("900 tokens a minute")
    page.locator("[data-action=weigh-key] select").select_option(label="a program, 0.5")
    page.locator("[data-action=weigh-key]").get_by_label("Weight in the queue").fill("3")
    page.get_by_role("button", name="Change weight").click()
    expect(row).to_contain_text("weight 3")
    row.get_by_role("button").click()
    row.get_by_role("button").click()
    expect(row.locator(".chip")).to_have_text("revoked")


def preview_plans(page: Page, root: str) -> None:
    """As things are but for what runs, and with one node fewer."""
    open_page(page, f"{root}/plan")
    page.get_by_label("As if no request ran").check()
    page.get_by_role("button", name="Preview").click()
    preview = page.locator("section", has=page.get_by_role("heading", name="Preview"))
    expect(preview).to_contain_text("tokens/s", timeout=30_000)
    page.get_by_label("Without these nodes").fill("node 1")
    page.get_by_label("As if no request ran").check()
    page.get_by_role("button", name="Preview").click()
    expect(preview).to_contain_text("No plan", timeout=30_000)
    page.get_by_label("Without these nodes").fill("nobody")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert").first).to_contain_text("no node 'nobody' is attached")
    press_twice(page, "Plan again")
    expect(page.get_by_role("status").first).to_contain_text("A new plan is being made")


def filter_lists(page: Page, root: str) -> None:
    """Narrowed by forms whose addresses can be kept, and widened again."""
    open_page(page, f"{root}/nodes")
    page.get_by_label("Name or id").fill("node 2")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#nodes tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Show all").first.click()
    expect(page.locator("#nodes tbody tr")).to_have_count(3)
    open_page(page, f"{root}/requests?outcome=cancelled")
    expect(page.locator("#ended")).to_contain_text("No request fits")
    open_page(page, f"{root}/events?node=node+2&kind=load")
    expect(page.locator("#events tbody tr").first).to_contain_text("layer")


def ban_and_unban(page: Page, root: str, node_id: str) -> None:
    """Out at once, said so, and let in again; then a node that never was."""
    open_page(page, f"{root}/nodes/{node_id}")
    press_twice(page, "Ban ")
    expect(page.locator(".notice")).to_contain_text("is banned")
    expect(page.locator(".page .banner-bad")).to_contain_text("Banned")
    press_twice(page, "Unban ")
    expect(page.locator(".notice")).to_contain_text("may come back")
    open_page(page, f"{root}/nodes/nobody")
    expect(page.locator(".page .banner-warn")).to_contain_text("No such node")
