"""Chat templates: Jinja in a sandbox, with the names that published templates use."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from plait.clock import Clock, SystemClock
from plait.errors import InvalidRequestError, ModelError

RENDERED_CHARS_MAX = 16 * 1024 * 1024


class ChatTemplate:
    """A model's own layout of a conversation.

    Templates come with the weights, from strangers: they run in an immutable sandbox and see the
    messages, the markers and nothing else.
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
        except TemplateError as error:
            raise ModelError(f"the model's chat template does not compile: {error}") from error
        self._clock = clock if clock is not None else SystemClock()
        self._markers = {"bos_token": bos_token, "eos_token": eos_token}

    def render(self, messages: Sequence[tuple[str, str]]) -> str:
        """The prompt for (role, content) pairs, up to where the assistant begins to speak.

        Raises InvalidRequestError where the template refuses the conversation.
        """
        try:
            text = self._template.render(
                messages=[{"role": role, "content": content} for role, content in messages],
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
