"""The pages: overview, enrolment, keys. Registered once per process, NiceGUI's way."""

from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import Request
from nicegui import ui

from coordinator.core.events import NodeDrainAsked, ReplanAsked
from coordinator.dashboard import access, nodes, overview
from coordinator.dashboard.frame import Frame, Sources
from coordinator.dashboard.live import Action, Live
from coordinator.dashboard.snapshot import Snapshot
from plait import log
from plait.types import NodeId

DRAIN_LIMIT_MS: Final = 10_000
VALID_S: Final = {str(valid_s): valid_s for valid_s, _ in access.VALIDITIES}
REGIONS: Final[tuple[tuple[str, Callable[[Snapshot], str]], ...]] = (
    ("headline", overview.draw_headline),
    ("tiles", overview.draw_tiles),
    ("layers", nodes.draw_layers),
    ("nodes", nodes.draw_nodes),
    ("requests", overview.draw_requests),
    ("plan", overview.draw_plan),
)

_log = log.get("dashboard")


def register(sources: Sources) -> None:
    """Define the pages on NiceGUI's application."""

    @ui.page("/", title="plait", response_timeout=10)
    async def show_overview(request: Request) -> None:
        await overview_page(sources, request)

    @ui.page("/enrolment", title="Enrolment · plait", response_timeout=10)
    async def show_enrolment(request: Request) -> None:
        await enrolment_page(sources, request)

    @ui.page("/keys", title="API keys · plait", response_timeout=10)
    async def show_keys(request: Request) -> None:
        await keys_page(sources, request)


async def overview_page(sources: Sources, request: Request) -> None:
    """The network, live."""
    frame = Frame(sources, request, at="")

    async def do(action: Action) -> None:
        match action.name:
            case "drain":
                asked = NodeDrainAsked(
                    node_id=NodeId(action.value),
                    incarnation=None,
                    reason="operator",
                    limit_ms=DRAIN_LIMIT_MS,
                )
                sources.inbox.post(asked)
                frame.say("The node drains: it finishes what runs and takes nothing new.")
            case "replan":
                sources.inbox.post(ReplanAsked())
                frame.say("A new plan is being made.")
            case _:
                return
        _log.info("dashboard_action", action=action.name, node_id=action.value)

    on_action = _through(frame, do)
    with ui.element("main").props("id=main").classes("page"):
        regions = [(name, draw, Live(on_action)) for name, draw in REGIONS]

    async def tick() -> None:
        for name, draw, live in regions:
            live.show(sources.snapshot.drawn(name, draw))

    await tick()
    frame.start(tick)


async def enrolment_page(sources: Sources, request: Request) -> None:
    """Create, list and revoke enrolment tokens."""
    frame = Frame(sources, request, at="enrolment")

    async def do(action: Action) -> None:
        match action.name:
            case "create-token":
                valid_s = VALID_S.get(action.fields.get("valid_s", ""), 86_400)
                secret, token = await sources.tokens.create_token(
                    display_name=action.fields.get("display_name", "")[:64], valid_s=valid_s
                )
                line = f"plait node join {sources.join_address} --token {secret}"
                shown.show(
                    access.draw_secret(
                        "Run this on the machine",
                        line,
                        f"Token {token.token_id}. It is shown once and works once.",
                    )
                )
                _log.info("enrolment_token_created", token_id=token.token_id)
            case "revoke-token":
                await sources.tokens.revoke_token(action.value)
                frame.say(f"Token {action.value} is revoked.")
                _log.info("enrolment_token_revoked", token_id=action.value)
        await tick()

    async def tick() -> None:
        listed.show(access.draw_tokens(await sources.tokens.list_tokens()))

    on_action = _through(frame, do)
    with ui.element("main").props("id=main").classes("page page-narrow"):
        Live(on_action).show(access.draw_token_form())
        shown = Live(on_action)
        listed = Live(on_action)
    await tick()
    frame.start(tick)


async def keys_page(sources: Sources, request: Request) -> None:
    """Create, list and revoke API keys."""
    frame = Frame(sources, request, at="keys")

    async def do(action: Action) -> None:
        match action.name:
            case "create-key":
                secret, key = await sources.keys.create_key(
                    display_name=action.fields.get("display_name", "")[:64],
                    is_admin=action.fields.get("is_admin") == "yes",
                )
                note = f"{key.key_id} for {key.display_name or 'nobody in particular'}."
                shown.show(access.draw_secret("The new key", secret, f"{note} It is shown once."))
                _log.info("api_key_created", key_id=key.key_id, is_admin=key.is_admin)
            case "revoke-key":
                await sources.keys.revoke_key(action.value)
                sources.sessions.close_key(action.value)
                frame.say(f"Key {action.value} is revoked.")
                _log.info("api_key_revoked", key_id=action.value)
        await tick()

    async def tick() -> None:
        listed.show(access.draw_keys(await sources.keys.list_keys()))

    on_action = _through(frame, do)
    with ui.element("main").props("id=main").classes("page page-narrow"):
        Live(on_action).show(access.draw_key_form())
        shown = Live(on_action)
        listed = Live(on_action)
    await tick()
    frame.start(tick)


def _through(
    frame: Frame, do: Callable[[Action], Awaitable[None]]
) -> Callable[[Action], Awaitable[None]]:
    async def on_action(action: Action) -> None:
        await frame.attempt(do(action))

    return on_action
