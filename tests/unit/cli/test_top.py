"""`plait top`: what a look shows, how rates come about, and how the view ends."""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from coordinator.core.view import NetworkView
from plait.cli.fields import Fields
from plait.cli.top_view import Rates, frame
from plait.cli.watching import FAILURES_MAX, watch
from plait.errors import AuthenticationError, UnavailableError
from tests.unit.dashboard.fakes import network_view, request_view


def fields(view: NetworkView) -> Fields:
    return Fields.parse(json.dumps(dataclasses.asdict(view)))


def grown(ms: int, tokens: int, *, incarnation: int = 1) -> NetworkView:
    """The same network a while later."""
    view = network_view()
    nodes = tuple(
        dataclasses.replace(node, tokens_total=node.tokens_total + tokens, incarnation=incarnation)
        for node in view.nodes
    )
    counters = dataclasses.replace(view.counters, tokens_generated=1_000 + tokens)
    return dataclasses.replace(view, nodes=nodes, counters=counters, now_ms=1_000_000 + ms)


def shown(view: NetworkView, rates: Rates, *, height: int = 40, width: int = 120) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(frame(fields(view), rates, height=height, hint="q ends"))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_look_shows_nodes_requests_of_now_and_totals() -> None:
    rates = Rates()
    rates.look(fields(grown(0, 0)))
    first = shown(grown(0, 0), rates)
    assert "3 of 4 nodes serve, - tokens/s, 1 requests run, 1 wait" in first[0]
    rates.look(fields(grown(2_000, 50)))
    lines = shown(grown(2_000, 50), rates)
    assert lines[0].endswith("4 nodes serve, 25.0 tokens/s, 1 requests run, 1 wait")
    assert lines[1].startswith("since start  1,050 tokens; requests: 9 finished")
    node = next(line for line in lines if line.startswith("attic-3060"))
    assert node.split()[1:7] == ["serving", "0-9", "25.0", "5.10", "12.30", "0"]
    assert any(line.startswith("req-0001") and "184 ms" in line for line in lines)
    assert any(line.startswith("req-0002") and "queued" in line for line in lines)
    assert not any(line.startswith("req-0003") for line in lines), "it has ended"
    assert lines[-1] == "q ends"


def test_rates_are_of_the_last_seconds_and_begin_anew_with_whom_they_count() -> None:
    rates = Rates()
    for ms, tokens in ((0, 0), (2_000, 1_000), (4_000, 1_000), (6_000, 1_000), (8_000, 1_010)):
        rates.look(fields(grown(ms, tokens)))
    node_id = network_view().nodes[0].node_id
    assert rates.network() == rates.node(node_id) == pytest.approx(10 / 6)
    rates.look(fields(grown(9_000, 0, incarnation=2)))
    assert rates.node(node_id) is None and rates.network() == 0.0
    rates.look(fields(grown(100, 0)))  # a coordinator that was started anew
    assert rates.network() is None


def test_what_has_no_room_is_counted() -> None:
    view = network_view()
    nodes = tuple(
        dataclasses.replace(view.nodes[0], node_id=f"n{at}", display_name=f"box-{at}")
        for at in range(40)
    )
    requests = tuple(request_view(at) for at in range(30))
    crowd = dataclasses.replace(view, nodes=nodes, requests=requests)
    lines = shown(crowd, Rates(), height=30, width=80)
    assert len(lines) <= 30 and all(len(line) <= 80 for line in lines)
    for what, begin, num in (("nodes", "box-", 40), ("requests", "req-", 30)):
        rows = sum(line.startswith(begin) for line in lines)
        assert rows > 5 and f"and {num - rows} more {what}" in lines


def test_nothing_to_show_is_said() -> None:
    empty = dataclasses.replace(network_view(is_whole=False), nodes=(), requests=())
    lines = shown(empty, Rates())
    assert any("plait token create" in line for line in lines)
    assert "no request now" in lines and any("layers 10-19 of 30" in line for line in lines)


async def test_a_coordinator_that_is_away_is_waited_for_and_q_ends() -> None:
    away = UnavailableError("connection refused")
    answers: list[str | Exception] = ["{}", away, away, "{}", "{}"]
    drawn: list[Fields] = []
    console = Console(file=io.StringIO(), force_terminal=True, width=60)

    async def fetch() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def pause() -> bool:
        return bool(answers)

    def draw(view: Fields) -> str:
        drawn.append(view)
        return f"look {len(drawn)}"

    await watch(fetch, draw, pause, console=console)
    assert len(drawn) == 3
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("coordinator away: connection refused") >= 1
    answers[:] = [away] * (FAILURES_MAX + 1) + ["{}"]
    with pytest.raises(UnavailableError):
        await watch(fetch, draw, pause, console=console)
    answers[:] = [AuthenticationError("no such key"), "{}"]
    with pytest.raises(AuthenticationError):
        await watch(fetch, draw, pause, console=console)
    assert len(drawn) == 3
