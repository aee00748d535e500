"""Cached tokens of prompts from the relay's book to people's eyes: counted, shown, measured."""

import json
from dataclasses import asdict, replace
from io import StringIO

from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from coordinator.core.view import NetworkView
from coordinator.dashboard.request import draw_request
from coordinator.gateway.generation import Generation
from coordinator.gateway.happenings import GeneratedToken
from coordinator.gateway.prompt_book import PromptBook, PromptTotals
from coordinator.shell.live_views import LiveViews
from coordinator.shell.metrics import _Collector
from coordinator.view_json import network_from_json
from plait.cli.request import draw
from plait.clock import ManualClock
from plait.types import ModelId, RequestId, SamplingParams
from tests.kit.scripted_network import ROUTE, ByteTokenizer
from tests.unit.dashboard.fakes import network_view, request_view
from tests.unit.dashboard.test_drawing import snapshot

MODEL = ModelId("smollm2-135m-instruct")


def generation(request_id: str, cached_tokens: int) -> Generation:
    one = Generation(
        request_id=RequestId(request_id),
        model_id=MODEL,
        key_id="k",
        prompt_ids=range(50),
        max_new_tokens=9,
        sampling=SamplingParams(),
        stop=(),
        stop_token_ids=(),
        vocab_size=257,
        tokenizer=ByteTokenizer(),
        clock=ManualClock(),
    )
    one.on_routed(1, ROUTE, cached_tokens)
    return one


def take(book: PromptBook, one: Generation) -> None:
    """Its next token."""
    book.note(one)
    one.on_token(GeneratedToken(token_id=97), None)


def test_a_prompt_counts_once_with_its_first_token() -> None:
    book = PromptBook(requests_max=2)
    first = generation("r1", 32)
    assert not book.models
    take(book, first)
    first.on_routed(2, ROUTE, 0)
    take(book, first)
    take(book, generation("r2", 0))
    assert book.models == {MODEL: PromptTotals(100, 32)}
    take(book, generation("r3", 16))
    assert book.requests == {"r2": 0, "r3": 16}, "the oldest is forgotten, not its model's part"
    assert book.models == {MODEL: PromptTotals(150, 48)}


class Views:
    """Always the same one."""

    def view(self) -> NetworkView:
        return replace(network_view(), requests=(request_view(1), request_view(2)))


def seen() -> NetworkView:
    book = PromptBook()
    take(book, generation(request_view(1).request_id, 32))
    return LiveViews(Views(), dict, prompts=book).view()


def test_status_and_receipts_have_them() -> None:
    view = network_from_json(json.dumps(asdict(seen())))
    assert [request.cached_tokens for request in view.requests] == [32, None]
    assert (view.models[0].prompt_tokens, view.models[0].cached_prompt_tokens) == (50, 32)
    out = StringIO()
    for part in draw(view.requests[0], {}):
        Console(file=out, width=300).print(part)
    assert "32 of the prompt from earlier requests" in out.getvalue()
    page = draw_request(snapshot(view), view.requests[0], "")
    assert "tokens, 32 from earlier requests" in page and "cached_tokens&quot;: 32" in page


def test_metrics_have_them_by_model() -> None:
    class Seen:
        def view(self) -> NetworkView:
            return seen()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(Seen(), None))
    text = generate_latest(registry).decode()
    assert f'plait_prompt_tokens_total{{model="{MODEL}"}} 50.0' in text
    assert f'plait_cached_prompt_tokens_total{{model="{MODEL}"}} 32.0' in text
