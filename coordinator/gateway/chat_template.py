"""Chat templates: Jinja in a sandbox, with the names that published templates use."""

import json
from datetime import UTC, datetime
from typing import NoReturn

from jinja2 import TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from coordinator.gateway.chat_layout import ChatLayout
from coordinator.gateway.tool_formats import Family, ToolFormat, format_of
from plait.clock import Clock, SystemClock
from plait.errors import InvalidRequestError, ModelError

RENDERED_CHARS_MAX = 16 * 1024 * 1024


class ChatTemplate:
    """A model's own layout of a conversation.

    Templates come with the weights, from strangers: they run in an immutable sandbox and see the
    messages, the tools, the markers and nothing else. `tool_format` is the form of calls that the
    template teaches, `knows_tools` whether it lays tools out by itself.
    """

    def __init__(
        self, source: str, *, bos_token: str, eos_token: str, clock: Clock | None = None
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = self._strftime_now
        try:
            self._template = environment.from_string(source)
            names = meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise ModelError(f"the model's chat template does not compile: {error}") from error
        self.tool_format: ToolFormat = format_of(source, knows_tools="tools" in names)
        self.knows_tools = self.tool_format.family is not Family.PLAIN
        self._clock = clock if clock is not None else SystemClock()
        self._markers = {"bos_token": bos_token, "eos_token": eos_token}

    def render(self, layout: ChatLayout) -> str:
        """The prompt for a conversation, up to where the assistant begins to speak.

        Raises InvalidRequestError where the template refuses the conversation.
        """
        try:
            text = self._template.render(
                messages=layout.messages,
                tools=layout.tools,
                add_generation_prompt=True,
                **self._markers,
            )
        except (TemplateError, TypeError, ValueError, OverflowError) as error:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
        if len(text) > RENDERED_CHARS_MAX:
            raise InvalidRequestError("the conversation is too long", param="messages")
        return text

    def _strftime_now(self, layout: str) -> str:
        return datetime.fromtimestamp(self._clock.unix_ms() / 1000, UTC).strftime(layout)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
