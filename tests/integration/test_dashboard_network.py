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
from tests.integration.test_dashboard_browser import ARTIFACTS, CHROMIUM, FLAGS, needs_chromium
from tests.kit.network import serving_network
from tests.kit.tiny_model import write_tiny_model

NAMES = ("node 1", "node 2", "node 3")
pytestmark = [pytest.mark.slow, needs_chromium]


def test_a_running_network_is_seen_by_browser_and_terminal(tmp_path: Path) -> None:
    spec = write_tiny_model(tmp_path / "tiny")
    with (
        serving_network(
            tmp_path, str(tmp_path / "tiny"), spec, num_stages=len(NAMES), telemetry=()
        ) as network,
        _traffic(network, spec.model_id),
        _page() as page,
    ):
        _sign_in(page, network)
        _watch_counters(page)
        _compare_with_terminal(network)
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


def _kill_and_see_the_will(page: Page, network: LocalNetwork) -> None:
    network.nodes[NAMES[-1]].process.kill()
    departed = page.locator("#telemetry .departed li", has_text=NAMES[-1])
    # Two seconds for the will, one for the page's tick.
    expect(departed.locator(".chip")).to_have_text("lost", timeout=3_000)


@contextmanager
def _page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        page = browser.new_page(color_scheme="light")
        page.set_default_timeout(15_000)
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
