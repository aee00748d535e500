"""Answers held to schemas and forced calls on the real network with real weights, and the example
that calls a function."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from openai import OpenAI

from plait.cli.local_network import LocalNetwork
from plait.types import FinishReason
from tests.integration.smollm.test_openai_network import EXAMPLES, client, run_example
from tests.kit.network import SMOLLM, client_of

__all__ = ["client"]  # a fixture
pytestmark = pytest.mark.slow

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "langs": {
            "type": "array",
            "items": {"enum": ["en", "de", "fr"]},
            "minItems": 1,
            "maxItems": 2,
        },
        "home": {
            "anyOf": [
                {"type": "null"},
                {
                    "type": "object",
                    "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{2,12}$"}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            ]
        },
    },
    "required": ["name", "age", "langs", "home"],
    "additionalProperties": False,
}
PROMPTS = [
    "Describe Ada Lovelace as JSON.",
    "Invent a person who lives in Paris. Answer in JSON.",
    "Wer ist Goethe? JSON, bitte.",
    "Describe a baker as a JSON object with name, age, langs and home.",
    "Hello!",
]
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"enum": [1, 3, 7]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": WEATHER,
        },
    }
]


def test_answers_follow_their_schema(client: OpenAI) -> None:
    def ask(at: int) -> str:
        answer = client.chat.completions.create(
            model=SMOLLM,
            messages=[{"role": "user", "content": PROMPTS[at]}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "person", "strict": True, "schema": PERSON},
            },
            temperature=at % 2,
            seed=at,
            max_tokens=160,
        )
        choice = answer.choices[0]
        assert choice.finish_reason == "stop" and choice.message.content is not None
        return choice.message.content

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        for content in pool.map(ask, range(len(PROMPTS))):
            jsonschema.validate(json.loads(content), PERSON)


def test_a_forced_call_parses_and_its_answer_goes_on(smollm_network: LocalNetwork) -> None:
    with client_of(smollm_network) as sdk:
        asked: list[dict[str, object]] = [{"role": "user", "content": "Weather in Rome?"}]
        answer = sdk.chat(
            asked,
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=80,
        )
        assert answer.finish_reason is FinishReason.TOOL_CALLS
        (call,) = answer.tool_calls
        jsonschema.validate(call.parse(), WEATHER)
        told = {"role": "tool", "tool_call_id": call.call_id, "content": "sunny"}
        again = sdk.chat(
            [*asked, answer.message, told], tools=TOOLS, tool_choice="none", max_tokens=12
        )
    assert again.text and not again.tool_calls


def test_patterns_grammars_and_biases(smollm_network: LocalNetwork) -> None:
    with client_of(smollm_network) as sdk:
        pattern = {"type": "regex", "pattern": "(red|green|blue)(, (red|green|blue)){2}"}
        colours = sdk.generate("Colours:", response_format=pattern, max_tokens=20).text
        assert len(colours.split(", ")) == 3
        grammar = {"type": "grammar", "grammar": 'start: DIGIT+ "/" DIGIT+\nDIGIT: /[0-9]/'}
        ratio = sdk.generate("1/2, ", response_format=grammar, max_tokens=24, seed=2, stop="/")
        assert ratio.text.isdecimal()
        free = sdk.generate("The capital of France is", max_tokens=1, temperature=0)
        banned = {free.token_ids[0]: -100.0}
        other = sdk.generate(
            "The capital of France is", max_tokens=1, temperature=0, logit_bias=banned
        )
        assert other.token_ids != free.token_ids
        wanted = sdk.generate("x", max_tokens=3, logit_bias={1234: 100.0}, seed=1)
        assert wanted.token_ids == (1234,) * 3


def test_the_example_runs(smollm_network: LocalNetwork) -> None:
    done = run_example(smollm_network, [str(EXAMPLES / "tools.py")])
    call, person = done.stdout.splitlines()
    assert call.startswith("add(") and json.loads(person)["name"]
