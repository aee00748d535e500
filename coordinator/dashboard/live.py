"""The one NiceGUI component: HTML drawn here, patched in the browser (static/live.js)."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from nicegui import ui
from nicegui.events import GenericEventArguments

FIELD_CHARS_MAX: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A button's press or a form's submission, as the browser says it."""

    name: str
    value: str
    fields: Mapping[str, str]


ActionHandler = Callable[[Action], Awaitable[None]]


class Live(ui.element, component="static/live.js"):
    """A region of the page. `show` sends only what changed since the last time."""

    def __init__(self, on_action: ActionHandler | None = None, *, classes: str = "") -> None:
        super().__init__()
        self._props["markup"] = ""
        if classes:
            self.classes(classes)
        if on_action is not None:
            handler = on_action

            async def take(event: GenericEventArguments) -> None:
                action = parse_action(event.args)
                if action is not None:
                    await handler(action)

            self.on("action", take)

    @property
    def markup(self) -> str:
        """What is shown."""
        return str(self._props["markup"])

    def show(self, markup: str) -> None:
        """Show `markup`; nothing is sent where it is the same as before."""
        if self._props["markup"] != markup:
            self._props["markup"] = markup
            self.update()

    def leave_to(self, path: str) -> None:
        """Have the browser open another page of ours."""
        if self._props.get("leave") != path:
            self._props["leave"] = path
            self.update()


def parse_action(raw: object) -> Action | None:
    """What the browser sent, or None where it is nonsense."""
    if not isinstance(raw, dict):
        return None
    name, value, fields = raw.get("action"), raw.get("value") or "", raw.get("fields")
    if not isinstance(name, str) or not isinstance(value, str) or not isinstance(fields, dict):
        return None
    texts = {
        str(field)[:FIELD_CHARS_MAX]: content[:FIELD_CHARS_MAX].strip()
        for field, content in list(fields.items())[:16]
        if isinstance(content, str)
    }
    return Action(name=name[:64], value=value[:FIELD_CHARS_MAX], fields=texts)
