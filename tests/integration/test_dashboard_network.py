"""The dashboard, `plait status` and the last will, on a real network of processes."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from plait.cli.local_network import LocalNetwork
from tests.integration import dashboard_walk as walk
from tests.integration.test_dashboard_browser import ARTIFACTS, CHROMIUM, FLAGS, needs_chromium
from tests.kit.network import serving_network
from tests.kit.tiny_model import write_tiny_model

WAIT_MS = 30_000
PAGES = ("map", "nodes", "models", "requests", "plan", "events", "enrolment", "keys")
NAMES = ("node 1", "node 2", "node 3")
pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.mark.timeout(600)  # a minute, more on a machine that has much else to do
def test_a_running_network_is_seen_by_browser_and_terminal(tmp_path: Path) -> None:
    spec = write_tiny_model(tmp_path / "tiny")
    with (
        serving_network(
            tmp_path, str(tmp_path / "tiny"), spec, num_stages=len(NAMES), telemetry=()
        ) as network,
        _page() as page,
    ):
        with _traffic(network, spec.model_id):
            _sign_in(page, network)
            _watch_counters(page)
        _compare_with_terminal(network)
        _walk(page, network)
        _kill_and_see_the_will(page, network)


def _sign_in(page: Page, network: LocalNetwork) -> None:
    page.goto(f"{network.profile.http_url}/dashboard")
    page.get_by_label("Admin key").fill(network.profile.api_key)
    page.keyboard.press("Enter")
    expect(page.locator("[data-counter=nodes_serving]")).to_have_text("3 / 3")


def _watch_counters(page: Page) -> None:
    for name in NAMES:
        row = page.locator("#nodes tbody tr", has=page.locator(".cell-name", has_text=name))
        expect(row.locator(".chip").first).to_have_text("serving")
        # Telemetry arrives: the age of the last reading stands where a dash would.
        expect(row.locator("[data-label=Heard]")).not_to_have_text("\u2013")
    counter = page.locator("[data-counter=tokens_generated]")
    for _ in range(3):
        expect(counter).not_to_have_text(counter.inner_text())
    expect(page.locator("#requests .route").first.locator("li")).to_have_count(len(NAMES))
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / "dashboard-network.png", full_page=True)


def _compare_with_terminal(network: LocalNetwork) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "plait.cli.main", "status", "--json"],
        env={**os.environ, "PLAIT_HOME": str(network.home / "coordinator-home")},
        capture_output=True,
        timeout=30,
        check=True,
    )
    view = json.loads(answer.stdout)
    seen = {node["display_name"]: node["state"] for node in view["nodes"]}
    assert seen == dict.fromkeys(NAMES, "serving")
    assert view["counters"]["tokens_generated"] > 0


def _walk(page: Page, network: LocalNetwork) -> None:
    """Every page in both themes and two widths, every button; no other host is asked."""
    root = f"{network.profile.http_url}/dashboard"
    hosts, errors = walk.watch_hosts(page)
    walk.open_page(page, f"{root}/requests")
    ended = page.locator("#ended a.cell-id").first.get_attribute("href")
    node_id = network.node_view(network.view(), NAMES[1]).node_id
    pages = {name: f"{root}/{name}" for name in PAGES}
    pages |= {"overview": f"{root}/", "node": f"{root}/nodes/{node_id}"}
    pages["request"] = f"{network.profile.http_url}{ended}"
    faults = [f for name, url in pages.items() for f in walk.look_at(page, url, name)]
    assert faults == []
    walk.by_keyboard(page, root)
    walk.filter_lists(page, root)
    walk.make_and_revoke_a_token(page, root)
    walk.make_weigh_and_revoke_a_key(page, root)
    walk.preview_plans(page, root)
    walk.ban_and_unban(page, root, node_id)
    assert hosts == {network.profile.http_url.removeprefix("http://")}
    assert errors == []
    walk.open_page(page, f"{root}/")


def _kill_and_see_the_will(page: Page, network: LocalNetwork) -> None:
    network.nodes[NAMES[-1]].process.kill()
    departed = page.locator("#telemetry .departed li", has_text=NAMES[-1])
    expect(departed.locator(".chip")).to_have_text("lost")


@contextmanager
def _page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        page = browser.new_page(color_scheme="light")
        page.set_default_timeout(WAIT_MS)
        expect.set_options(timeout=WAIT_MS)
        yield page
        browser.close()


@contextmanager
def _traffic(network: LocalNetwork, model: str) -> Iterator[None]:
    """Completions, one after another, until the block ends."""
    is_over = threading.Event()

    def ask() -> None:
        headers = {"authorization": f"Bearer {network.profile.api_key}"}
        body = {"model": model, "prompt": "why", "max_tokens": 200, "temperature": 1.0}
        with httpx.Client(base_url=network.profile.http_url, headers=headers, timeout=20) as http:
            while not is_over.is_set():
                try:
                    http.post("/v1/completions", json=body)
                except httpx.TransportError:
                    time.sleep(0.1)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        yield
    finally:
        is_over.set()
        asking.join(timeout=1)
