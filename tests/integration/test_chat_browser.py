"""A real Chromium on /chat: a key, a question, an answer as it comes, a stop, an error."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from plait.types import Reason
from tests.integration.test_dashboard_browser import ARTIFACTS, CHROMIUM, FLAGS, needs_chromium
from tests.kit.gateway_rig import GatewayRig, open_gateway
from tests.kit.scripted_network import API_KEY, ScriptedNetwork, says

pytestmark = [
    pytest.mark.slow,
    needs_chromium,
    pytest.mark.asyncio(loop_scope="module"),
]
HOSTILE = "<img src=x onerror=alert(1)><b>bold</b>"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield launched
        await launched.close()


@asynccontextmanager
async def opened(
    browser: Browser, network: ScriptedNetwork, **options: int
) -> AsyncIterator[tuple[Page, GatewayRig]]:
    async with open_gateway(network) as rig:
        context = await browser.new_context(
            viewport={"width": options.get("width", 1_000), "height": 700}
        )
        page = await context.new_page()
        page.set_default_timeout(15_000)
        errors: list[str] = []
        hosts: set[str] = set()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: hosts.add(request.url.split("/chat")[0].split("/v1")[0]))
        await page.goto(f"{rig.url}/chat")
        yield page, rig
        assert errors == []
        assert hosts == {rig.url}
        await context.close()


async def sign_in(page: Page, key: str = API_KEY) -> None:
    await page.get_by_label("API key").fill(key)
    await page.keyboard.press("Enter")


async def test_a_question_is_answered_as_text_whatever_it_holds(browser: Browser) -> None:
    network = ScriptedNetwork(says(HOSTILE))
    async with opened(browser, network) as (page, _):
        await sign_in(page)
        await expect(page.get_by_label("Model")).to_have_text("tiny")
        await page.get_by_label("Message").fill("hi")
        await page.keyboard.press("Enter")
        answer = page.get_by_label("The model")
        await expect(answer).to_contain_text(HOSTILE)
        await expect(answer).to_contain_text("tokens/s")
        assert await page.locator("#log img, #log b").count() == 0
        await page.get_by_label("Message").fill("and?")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_label("The model")).to_have_count(2)
        await expect(page.get_by_label("The model").last).to_contain_text("tokens/s")
        ARTIFACTS.mkdir(exist_ok=True)
        await page.screenshot(path=ARTIFACTS / "chat.png")
    second = bytes(network.starts[1].prompt_token_ids)
    assert HOSTILE.encode() in second, "the history goes along"


async def test_an_answer_can_be_stopped_and_the_network_hears_it(browser: Browser) -> None:
    network = ScriptedNetwork(pause_after=3)
    async with opened(browser, network) as (page, rig):
        await sign_in(page)
        await page.get_by_label("Message").fill("hi")
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("The model")).to_have_text(re.compile("^[a-z]{3}$"))
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_role("button", name="Send")).to_be_visible()
        await network.wait_for(lambda: rig.gateway.relay.num_generations == 0)


async def test_a_wrong_key_and_a_full_network_are_said_and_nothing_typed_is_lost(
    browser: Browser,
) -> None:
    network = ScriptedNetwork(
        refusal=Reason(code="queue_full", message="256 requests wait already")
    )
    async with opened(browser, network, width=390) as (page, _):
        await sign_in(page, "wrong")
        await expect(page.get_by_role("status")).to_contain_text("key")
        await sign_in(page)
        await page.get_by_label("Message").fill("precious words")
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("The model")).to_contain_text("256 requests wait already")
        await expect(page.get_by_label("Message")).to_have_value("precious words")
        width = await page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390
        await page.get_by_role("button", name="Forget the key").click()
        await expect(page.get_by_label("API key")).to_be_focused()
