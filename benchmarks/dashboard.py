"""What the dashboard of a large network costs the coordinator, and how soon a page is there.

`python benchmarks/dashboard.py [--nodes N] [--viewers N] [--json FILE] [--strict]`

A process serves the dashboard over a core with synthetic nodes whose figures all move every
second; Chromium looks at it. Costs are CPU time of that process, which a busy machine stretches
little; paint times are a clock's, with that of a page without scripts (login) to hold them against.
"""

import argparse
import asyncio
import contextlib
import shutil
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import psutil
from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from rich.table import Table

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks._bars import Bar, add_options, at_least, judge, wide_console, write_figures

FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
PAGES: Final = ("", "map", "nodes", "events", "requests", "models")
SETTLE_S: Final = 4.0
WATCH_S: Final = 12.0
START_S: Final = 180.0
PAINT: Final = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
CPU_MS_MOST: Final = 200.0
PAINT_S_MOST: Final = 2.0


async def measure(num_nodes: int, num_viewers: int) -> dict[str, float]:
    """CPU ms a second of the serving process without and with viewers, and paint times in s."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    async with _served(num_nodes) as (url, login, process), async_playwright() as playwright:
        idle = await _cpu_ms_per_s(process)
        browser = await playwright.chromium.launch(executable_path=chromium, args=[*FLAGS])
        context = await _signed_in(browser, f"{url}{login}")
        bare, _, page = await _open(context, f"{url}/dashboard/login", awaited="form")
        await page.close()
        paints, seen = [], []
        for name in PAGES:
            paint_s, seen_s, page = await _open(context, f"{url}/dashboard/{name}")
            paints.append(paint_s)
            seen.append(seen_s)
            await page.close()
        one = await _open(context, f"{url}/dashboard/")
        await asyncio.sleep(SETTLE_S)
        alone = await _cpu_ms_per_s(process)
        for at in range(1, num_viewers):
            await _open(context, f"{url}/dashboard/{PAGES[at % len(PAGES)]}")
        await asyncio.sleep(SETTLE_S)
        many = await _cpu_ms_per_s(process)
        await one[2].close()
        await browser.close()
    return {
        "nodes": num_nodes,
        "viewers": num_viewers,
        "cpu_ms_per_s_nobody": idle,
        "cpu_ms_per_s_one": alone,
        "cpu_ms_per_s_all": many,
        "login_paint_s": bare,
        "first_paint_s_median": statistics.median(paints),
        "first_paint_s_max": max(paints),
        "content_s_median": statistics.median(seen),
        "content_s_max": max(seen),
    }


@contextlib.asynccontextmanager
async def _served(num_nodes: int) -> AsyncIterator[tuple[str, str, psutil.Process]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("-m", "benchmarks._dashboard_serve", str(port), str(num_nodes))
    child = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE
    )
    try:
        if child.stdout is None:
            raise RuntimeError("the serving process has no standard output")
        async with asyncio.timeout(START_S):
            login = (await child.stdout.readline()).decode().strip()
            if not login:
                raise RuntimeError("the serving process ended before it served")
            while not await _answers(port):  # noqa: ASYNC110 - the port is another process's
                await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_S)
        yield f"http://127.0.0.1:{port}", login, psutil.Process(child.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            child.kill()
        await child.wait()


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def _cpu_ms_per_s(process: psutil.Process) -> float:
    def spent_s() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    before_s, began_s = spent_s(), time.perf_counter()
    await asyncio.sleep(WATCH_S)
    return 1e3 * (spent_s() - before_s) / (time.perf_counter() - began_s)


async def _signed_in(browser: Browser, link: str) -> BrowserContext:
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    page = await context.new_page()
    await page.goto(link)
    await page.close()
    return context


async def _open(
    context: BrowserContext, url: str, *, awaited: str = ".panel"
) -> tuple[float, float, Page]:
    """First paint by the browser's own clock, and when the page's figures are there."""
    page = await context.new_page()
    began_s = time.perf_counter()
    await page.goto(url, wait_until="commit")
    await page.wait_for_selector(awaited, timeout=60_000)
    seen_s = time.perf_counter() - began_s
    return float(await page.evaluate(PAINT)) / 1e3, seen_s, page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=at_least(4), default=2_000)
    parser.add_argument("--viewers", type=at_least(1), default=6)
    add_options(parser)
    options = parser.parse_args()
    console = wide_console()
    figures = asyncio.run(measure(options.nodes, options.viewers))
    table = Table("figure", "measured")
    for name, figure in figures.items():
        table.add_row(name, f"{figure:.4g}")
    console.print(table)
    bars = [
        Bar(
            name=f"CPU of {options.viewers} viewers, {options.nodes} nodes",
            measured=figures["cpu_ms_per_s_all"],
            most=CPU_MS_MOST,
            unit="ms/s",
        ),
        Bar(
            name="first paint",
            measured=figures["first_paint_s_median"],
            most=PAINT_S_MOST,
            unit="s",
        ),
    ]
    write_figures(options.json, {"benchmark": "dashboard", **figures}, bars)
    judge(bars, console, is_strict=options.strict)


if __name__ == "__main__":
    main()
