"""What holds the answer of an order: its response format and its tools as one constraint, compiled
once before anything is routed; and what finds the calls in it."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import TypedDict

from coordinator.gateway.constraint_check import ConstraintCheck
from coordinator.gateway.conversation import ToolMode, ToolUse
from coordinator.gateway.order import Conversation, Order
from coordinator.gateway.tool_calls import CallScanner
from coordinator.gateway.tool_formats import ToolFormat, calls_constraint
from plait.errors import InvalidRequestError
from plait.types import Constraint, ConstraintKind, RequestId

_SCHEMA = ConstraintKind.JSON_SCHEMA
_PARAMS = {
    ConstraintKind.JSON_SCHEMA: "response_format.json_schema.schema",
    ConstraintKind.REGEX: "response_format.pattern",
    ConstraintKind.GRAMMAR: "response_format.grammar",
}


def tools_of(order: Order) -> ToolUse | None:
    """The tools that the model may call, if any."""
    if not isinstance(order.prompt, Conversation) or order.prompt.tools is None:
        return None
    tools = order.prompt.tools
    return None if tools.mode is ToolMode.NONE else tools


async def constraint_of(
    order: Order, form: ToolFormat, check: ConstraintCheck
) -> Constraint | None:
    """The constraint, known to compile; None where the model is free.

    Raises InvalidRequestError with the reason and its path, and what `ConstraintCheck` raises.
    """
    content, tools = order.sampling.constraint, tools_of(order)
    for param, constraint in _parts(content, tools):
        await check.check(constraint, param)
    if tools is None:
        return content
    try:
        whole = calls_constraint(tools, form, content)
    except ValueError as error:
        raise InvalidRequestError(str(error), param="response_format") from error
    if whole is not None and whole != content:
        await check.check(whole, "tools")
    return whole


def _parts(content: Constraint | None, tools: ToolUse | None) -> Iterator[tuple[str, Constraint]]:
    if content is not None:
        yield _PARAMS[content.kind], content
    if tools is None or not (content is not None or tools.is_constrained):
        return
    for at, function in enumerate(tools.functions):
        if function.parameters and function in tools.callable_functions:
            param = f"tools[{at}].function.parameters"
            yield param, Constraint(_SCHEMA, function.parameters)


class CallOptions(TypedDict, total=False):
    """Arguments of a Generation."""

    calls: CallScanner
    shown: Mapping[int, bytes]


def calls_of(order: Order, form: ToolFormat, request_id: RequestId) -> CallOptions:
    """What a generation needs to find calls; nothing where it may make none."""
    tools = tools_of(order)
    if tools is None:
        return {}
    names = [each.name for each in tools.functions]
    scanner = CallScanner(
        form, names, lambda index: _call_id(request_id, index), is_parallel=tools.is_parallel
    )
    if form.opening_id is None:
        return {"calls": scanner}
    return {"calls": scanner, "shown": {form.opening_id: form.opening.encode()}}


def _call_id(request_id: RequestId, index: int) -> str:
    """Nine letters and digits: the form that every template takes."""
    return hashlib.sha256(f"{request_id}:{index}".encode()).hexdigest()[:9]
