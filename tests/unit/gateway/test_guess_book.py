"""Guesses from the last stage's tokens to people's eyes: counted, shown, measured."""

import json
from dataclasses import asdict, replace
from io import StringIO

from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from coordinator.core.view import NetworkView
from coordinator.dashboard.nodes import node_state
from coordinator.gateway.guess_book import GuessBook
from coordinator.gateway.happenings import GeneratedToken
from coordinator.shell.live_views import LiveViews
from coordinator.shell.metrics import _Collector
from coordinator.view_json import network_from_json
from node.core.messages import Token
from node.transport import encode
from plait.cli.fields import Fields
from plait.cli.request import draw
from plait.cli.status_view import draw as draw_status
from plait.types import DRAFTS_MAX, DraftHealth, DraftState, GuessTotals, ModelId, RequestId
from plait.wire.v1 import data_pb2
from tests.unit.dashboard.fakes import network_view, request_view

MODEL = ModelId("smollm2-135m-instruct")
LOST = DraftHealth(model_id="smallest", state=DraftState.LOST, why="its thread died", num_failed=6)
GUESSES = GuessTotals(trips=2, guessed=7, accepted=3, guessed_by_model=4, accepted_by_model=2)


def trip(book: GuessBook, name: str, right: int, guessed: int) -> None:
    """A trip as the last stage tells of it."""
    for _ in range(right):
        book.note(RequestId(name), MODEL, GeneratedToken(token_id=1, is_guess=True))
    book.note(RequestId(name), MODEL, GeneratedToken(token_id=1, num_guesses=guessed))


def test_trips_bring_a_token_and_the_right_guesses_before_it() -> None:
    book = GuessBook(requests_max=2)
    trip(book, "r1", 3, 4)
    trip(book, "r1", 0, 3)
    trip(book, "r2", 0, 0)
    assert book.requests["r1"] == GuessTotals(trips=2, guessed=7, accepted=3)
    assert book.models == {MODEL: GuessTotals(trips=3, guessed=7, accepted=3)}
    trip(book, "r3", 0, 0)
    assert set(book.requests) == {"r2", "r3"}, "the oldest is forgotten, not its model's part"
    assert book.models[MODEL].trips == 4


def test_only_the_gateway_hears_of_them() -> None:
    token = Token(RequestId("r1"), 1, 5, 9, is_guess=True, num_guesses=DRAFTS_MAX)
    up = data_pb2.NodeToGateway.FromString(encode.gateway_frame(token)).token
    ring = data_pb2.LinkFrame.FromString(encode.link_frame(1, token)).token
    assert (up.is_guess, up.num_guesses) == (True, DRAFTS_MAX)
    assert (ring.is_guess, ring.num_guesses) == (False, 0)


class Views:
    """Always the same one."""

    def __init__(self, view: NetworkView) -> None:
        self._view = view

    def view(self) -> NetworkView:
        return self._view


def seen() -> NetworkView:
    request = request_view(1)
    view = replace(network_view(), requests=(request,))
    nodes = tuple(replace(node, guesses=GUESSES, draft=LOST) for node in view.nodes)
    book = GuessBook()
    trip(book, request.request_id, 3, 4)
    trip(book, request.request_id, 0, 3)
    return LiveViews(Views(replace(view, nodes=nodes)), dict, book).view()


def test_status_and_receipts_have_them() -> None:
    view = network_from_json(json.dumps(asdict(seen())))
    assert (view.nodes[0].guesses, view.nodes[0].draft) == (GUESSES, LOST)
    assert view.models[0].guesses == GuessTotals(trips=2, guessed=7, accepted=3)
    out = StringIO()
    for part in draw(view.requests[0], {}):
        Console(file=out, width=200).print(part)
    assert "2 trips, 3 of 7 guessed tokens right" in out.getvalue()


def test_a_draft_model_that_does_not_guess_is_said_beside_its_node() -> None:
    view = seen()
    complaint = "draft model smallest lost: its thread died"
    out = StringIO()
    content = Fields.parse(json.dumps(asdict(view)))
    Console(file=out, width=200).print(draw_status(content))
    assert f"{view.nodes[0].display_name}: {complaint}" in out.getvalue()
    healthy = replace(view.nodes[0], state="serving", last_error="")
    assert complaint in node_state(healthy)
    assert complaint not in node_state(replace(healthy, draft=replace(LOST, why="")))


def test_metrics_have_them_by_node_and_by_model() -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(Views(seen()), None))
    text = generate_latest(registry).decode()
    assert f'plait_guesses_accepted_total{{model="{MODEL}"}} 3.0' in text
    assert f'plait_guesses_trips_total{{model="{MODEL}"}} 2.0' in text
    lines = [line for line in text.splitlines() if "node_guesses_accepted_by_model_total{" in line]
    assert lines and all(line.endswith(" 2.0") for line in lines)
    lines = [line for line in text.splitlines() if "node_draft_model{" in line]
    assert lines and all('state="lost"} 1.0' in line for line in lines)
    lines = [line for line in text.splitlines() if "node_draft_failures_total{" in line]
    assert lines and all(line.endswith(" 6.0") for line in lines)
