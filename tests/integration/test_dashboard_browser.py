"""A real Chromium on the dashboard: signs in, sees nodes and moving counters, presses buttons.

The network behind it is a fake one in a process of its own; screenshots stay in tests/artifacts.
"""

import asyncio
import contextlib
import shutil
import sys
import urllib.parse
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Locator, Page, async_playwright, expect
from playwright.async_api import TimeoutError as PlaywrightTimeoutError

from tests.kit.tools import free_port, needs
from tests.unit.dashboard.fakes import ADMIN_KEY

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARTIFACTS = Path(__file__).parents[1] / "artifacts"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ADDRESSES = {"Enrolment": "enrolment", "API keys": "keys", "Plan": "plan"}
needs_chromium = needs(CHROMIUM, "Chromium", "chromium")
pytestmark = [
    pytest.mark.slow,
    needs_chromium,
    pytest.mark.asyncio(loop_scope="module"),
]


@dataclass(slots=True)
class Site:
    """A served dashboard and everything the browser asked anybody for."""

    url: str
    login_path: str
    browser: Browser
    operator: BrowserContext | None = None
    hosts: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    async def open(self, **options: object) -> Page:
        """A page in a fresh profile."""
        context = await self.browser.new_context(**options)  # type: ignore[arg-type]
        return await self.page_of(context)

    async def page_of(self, context: BrowserContext) -> Page:
        """Another page of a profile, watched."""
        page = await context.new_page()
        page.set_default_timeout(30_000)
        expect.set_options(timeout=30_000)
        page.on("request", lambda request: self.hosts.add(_host(request.url)))
        page.on("websocket", lambda socket: self.hosts.add(_host(socket.url)))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self._note(said.text))
        return page

    def _note(self, said: str) -> None:
        """What the page's policy forbade is an error, though no script failed of it."""
        if "Content Security Policy" in said:
            self.errors.append(said)

    async def go(self, page: Page, name: str) -> None:
        """By the navigation, until the page can be used."""
        await page.get_by_role("link", name=name, exact=True).click()
        await page.wait_for_url(f"**/{ADDRESSES[name]}")
        await expect(page.locator("#first-paint")).to_have_count(0)

    async def signed_in(self, **options: object) -> Page:
        """A page that signed in with the admin key and shows the overview."""
        page = await self.open(**options)
        await page.goto(f"{self.url}/dashboard")
        await page.get_by_label("Admin key").fill(ADMIN_KEY)
        await page.keyboard.press("Enter")
        await expect(page.locator("#first-paint")).to_have_count(0)
        await expect(page.locator("[data-counter=nodes_serving]")).to_have_text("3 / 4")
        return page

    async def overview(self) -> Page:
        """A page that shows the overview, in the profile of an operator who signed in once."""
        if self.operator is None:
            page = await self.signed_in()
            self.operator = page.context
            return page
        page = await self.page_of(self.operator)
        await page.goto(f"{self.url}/dashboard")
        await expect(page.locator("#first-paint")).to_have_count(0)
        return page


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Site]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.dashboard_serve",
        str(port),
        "whole",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            login_path = (await process.stdout.readline()).decode().strip()
            await _until_up(f"http://127.0.0.1:{port}/dashboard/login")
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
            yield Site(f"http://127.0.0.1:{port}", login_path, browser)
            await browser.close()
    finally:
        process.kill()
        await process.wait()


async def press_through(button: Locator) -> None:
    """Press a button that asks again, and disappears when it has done what it does. What it asks
    is forgotten after some seconds; two presses may take a busy machine longer."""
    for _ in range(30):
        with contextlib.suppress(AssertionError, PlaywrightTimeoutError):
            await button.click(timeout=2_000)
            await button.click(timeout=2_000)
            await expect(button).to_have_count(0, timeout=2_000)
        if not await button.count():
            return
    raise AssertionError("the button is still there")


async def test_nodes_and_moving_counters_are_seen(site: Site) -> None:
    page = await site.overview()
    await page.emulate_media(color_scheme="dark")
    for name in ("attic-3060", "lab-4090", "dorm-m2"):
        title = page.locator(".cell-name", has_text=name)
        row = page.locator("#nodes tbody tr", has=title)
        await expect(row).to_have_count(1)
        await expect(row.locator(".chip").first).to_have_text("serving")
    counter = page.locator("[data-counter=tokens_generated]")
    before = await counter.inner_text()
    await expect(counter).not_to_have_text(before)
    await expect(page.locator(".strip .cell")).to_have_count(30)
    ARTIFACTS.mkdir(exist_ok=True)
    await page.screenshot(path=ARTIFACTS / "dashboard-dark.png", full_page=True)
    await page.close()


async def test_an_update_keeps_focus_and_a_drain_asks_twice(site: Site) -> None:
    page = await site.overview()
    drain = page.get_by_role("button", name="Drain lab-4090")
    await drain.focus()
    counter = page.locator("[data-counter=tokens_generated]")
    await expect(counter).not_to_have_text(await counter.inner_text())
    await expect(drain).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(drain).to_have_text("Drain now?")
    assert await _events(site) == []
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status").first).to_contain_text("drains")
    assert await _events(site) == ["NodeDrainAsked"]
    await page.close()


async def test_a_previewed_plan_is_applied_in_the_chosen_theme_and_nothing_after_signing_out(
    site: Site,
) -> None:
    page = await site.signed_in(color_scheme="light")
    await site.go(page, "Plan")
    num_before = len(await _events(site))
    await page.get_by_role("button", name="Preview").click()
    apply = page.locator("[data-action=apply]")
    await expect(apply).to_have_text("Apply: plan again")
    await press_through(apply)
    await expect(page.get_by_role("status").first).to_contain_text("being made and applied")
    assert (await _events(site))[num_before:] == ["ReplanAsked"]
    # auto, light, dark, and still dark when the page is opened anew.
    theme, root = page.locator("[data-theme-toggle]"), page.locator("html")
    for shown, is_what in (("auto", "light"), ("light", "light"), ("dark", "dark")):
        await expect(theme).to_have_text(f"Theme: {shown}")
        await expect(root).to_have_attribute("data-theme", is_what)
        if shown != "dark":
            await theme.click()
    await page.goto(f"{site.url}/dashboard/nosuch")
    await page.get_by_role("link", name="To the overview").click()
    await expect(page.locator("#first-paint")).to_have_count(0)
    await expect(root).to_have_attribute("data-theme", "dark")
    # Another tab of the session is sent away, too.
    other = await page.context.new_page()
    await other.goto(f"{site.url}/dashboard/keys")
    await expect(other.locator("#first-paint")).to_have_count(0)
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_label("Admin key")).to_be_visible()
    await expect(other.get_by_label("Admin key")).to_be_visible()
    await page.goto(f"{site.url}/dashboard/plan")
    await expect(page.get_by_label("Admin key")).to_be_visible()
    await page.context.close()


async def test_a_token_is_made_shown_once_and_revoked(site: Site) -> None:
    page = await site.overview()
    await site.go(page, "Enrolment")
    await page.get_by_label("Whose machine").fill("<b>Ada</b>")
    await page.get_by_role("button", name="Create token").click()
    await expect(page.locator("#secret")).to_contain_text(
        "plait node join plait.example.org:7420 --token plait-join-"
    )
    row = page.locator("tbody tr", has_text="<b>Ada</b>")
    await expect(row.locator(".chip")).to_have_text("unused")
    await press_through(row.get_by_role("button"))
    await expect(row.locator(".chip")).to_have_text("revoked")
    await page.reload()
    await expect(row.locator(".chip")).to_have_text("revoked")
    await expect(page.locator("#secret")).to_have_count(0)
    await page.close()


async def test_a_phone_needs_no_sideways_scrolling(site: Site) -> None:
    page = await site.overview()
    await page.set_viewport_size({"width": 390, "height": 844})
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    ARTIFACTS.mkdir(exist_ok=True)
    await page.screenshot(path=ARTIFACTS / "dashboard-phone.png")
    await page.close()


async def test_revoking_the_key_ends_its_sessions(site: Site) -> None:
    page = await site.open()
    await page.goto(f"{site.url}{site.login_path}")
    await expect(page.locator("#first-paint")).to_have_count(0)
    await site.go(page, "API keys")
    await page.get_by_label("Whose key").fill("second operator")
    await page.get_by_label("May administer").check()
    await page.get_by_role("button", name="Create key").click()
    secret = await page.locator("#secret").inner_text()
    other = await site.open()
    await other.goto(f"{site.url}/dashboard/login")
    await other.get_by_label("Admin key").fill(secret)
    await other.keyboard.press("Enter")
    await expect(other.locator("[data-counter=nodes_serving]")).to_be_visible()
    revoke = page.locator("tbody tr", has_text="second operator").get_by_role("button")
    await press_through(revoke)
    await expect(other.get_by_label("Admin key")).to_be_visible()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_label("Admin key")).to_be_visible()
    # The link was good once.
    await page.goto(f"{site.url}{site.login_path}")
    await expect(page.get_by_role("alert")).to_contain_text("used already")


async def test_no_request_left_the_host_and_no_script_failed(site: Site) -> None:
    assert site.hosts == {"127.0.0.1"}
    assert site.errors == []


def _host(url: str) -> str:
    return urllib.parse.urlsplit(url).hostname or "127.0.0.1"


async def _events(site: Site) -> list[str]:
    async with httpx.AsyncClient() as client:
        events: list[str] = (await client.get(f"{site.url}/events")).json()
        return events


async def _until_up(url: str) -> None:
    async with httpx.AsyncClient() as client:
        while True:
            try:
                await client.get(url)
                return
            except httpx.TransportError:
                await asyncio.sleep(0.05)
