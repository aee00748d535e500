"""The OpenAPI document says what the doors take, and nothing drawn from it makes them fail."""

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from coordinator.gateway.anthropic_schema import read_count_order
from coordinator.gateway.apis import APIS
from coordinator.gateway.generate import GenerateLimits
from coordinator.gateway.limits import DoorLimits
from coordinator.gateway.openapi.document import BODIES, PATH, document
from plait.errors import InvalidRequestError
from tests.kit.gateway_rig import open_gateway
from tests.kit.lazily import lazily
from tests.kit.scripted_network import API_KEY, ScriptedNetwork, says

if TYPE_CHECKING:
    import jsonschema
    import schemathesis
else:
    jsonschema, schemathesis = lazily("jsonschema"), lazily("schemathesis")

READERS = {api.path: api.read for api in APIS} | {"/v1/messages/count_tokens": read_count_order}
NUM_BODIES = int(os.environ.get("PLAIT_DOOR_BODIES", "25"))
"""Drawn for each door; more by hand."""

LEAST: Mapping[str, Mapping[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
}


@contextmanager
def served() -> Iterator[str]:
    """The URL of a gateway whose loop runs in a thread of its own."""
    url: list[str] = []
    is_up, is_over = threading.Event(), threading.Event()

    async def serve() -> None:
        limits = GenerateLimits(silence_s=5.0)
        door = DoorLimits(per_key_max=1000, per_address_max=1000)
        network = ScriptedNetwork(says("ok"))
        async with open_gateway(network, generate=limits, door=door) as rig:
            url.append(rig.url)
            is_up.set()
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    with ExitStack() as stack:
        thread.start()
        stack.callback(thread.join)
        stack.callback(is_over.set)
        assert is_up.wait(30)
        yield url[0]


def test_the_document_is_served_without_a_key_and_is_valid() -> None:
    with served() as url:
        content = httpx.get(url + PATH).json()
        schema = schemathesis.openapi.from_dict(content)
        schema.validate()
        for path in content["paths"]:
            method = "POST" if "post" in content["paths"][path] else "GET"
            answer = httpx.request(method, url + path.replace("{model_id}", "tiny"))
            assert answer.status_code not in (404, 405), path
    assert set(content["paths"]) >= set(READERS)


@pytest.mark.parametrize("path", sorted(BODIES))
def test_every_property_is_a_field_that_is_read(path: str) -> None:
    _, body, _ = BODIES[path]
    properties = body["properties"]
    assert isinstance(properties, dict)
    READERS[path]({"model": "tiny", **LEAST[path]})
    for name in properties:
        try:
            READERS[path]({"model": "tiny", **LEAST[path], name: ["no", {"such": "value"}]})
        except InvalidRequestError as error:
            assert error.code not in ("unknown_parameter", "unsupported_parameter"), error
        else:
            raise AssertionError(f"{name} is ignored")


@pytest.mark.parametrize("path", sorted(BODIES))
def test_what_the_document_forbids_at_the_top_is_refused(path: str) -> None:
    """And what it requires is missed."""
    body = {"model": "tiny", **LEAST[path]}
    schema = {"$ref": f"#/components/schemas/{BODIES[path][0]}", **document("1")}
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(body)
    for wrong in ({**body, "nonsense": 1}, *({**body, name: None} for name in body)):
        assert not validator.is_valid(wrong)
        with pytest.raises(InvalidRequestError):
            READERS[path](wrong)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(BODIES))
def test_no_body_drawn_from_the_document_makes_a_door_fail(path: str) -> None:
    num_answered = 0
    with served() as url:
        schema = schemathesis.openapi.from_url(url + PATH)
        operation = schema[path]["POST"]
        headers = {"authorization": f"Bearer {API_KEY}"}

        @given(case=operation.as_strategy(), data=st.data())
        @settings(
            max_examples=NUM_BODIES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: "schemathesis.Case[Any]", data: st.DataObject) -> None:
            if isinstance(case.body, dict) and data.draw(st.booleans()):
                case.body["model"] = "tiny"  # else most end at the model's name
            nonlocal num_answered
            answer = case.call(base_url=url, headers=headers, timeout=30)
            assert answer.status_code in (200, 400, 401, 404, 408, 413, 429), answer.text
            num_answered += answer.status_code == 200

        ask()
    assert num_answered, "the draws never came through to a model"
