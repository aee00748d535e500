"""Let the model call a function, give it the outcome, and ask for an answer in a form of its own.

Needs a running network; address, key and CA are found as in ask.py.
"""

import json

import plait

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 30}, "born": {"type": "integer"}},
    "required": ["name", "born"],
    "additionalProperties": False,
}

with plait.Client() as client:
    messages: list[dict[str, object]] = [{"role": "user", "content": "What is 12 + 30?"}]
    answer = client.chat(messages, tools=TOOLS, tool_choice="required", max_tokens=100, seed=1)
    for call in answer.tool_calls[:1]:
        arguments = call.parse()
        outcome = int(str(arguments["a"])) + int(str(arguments["b"]))
        print(f"{call.name}({arguments['a']}, {arguments['b']}) = {outcome}")
        messages += [
            answer.message,
            {"role": "tool", "tool_call_id": call.call_id, "content": str(outcome)},
        ]
    person = client.chat(
        [{"role": "user", "content": "Who was Ada Lovelace?"}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": PERSON},
        },
        max_tokens=100,
        temperature=0,
    )
    print(json.dumps(json.loads(person.text)))
