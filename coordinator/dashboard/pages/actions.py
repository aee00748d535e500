"""What buttons do to nodes and plans. Each says what became of it, also where the node is gone."""

from typing import Final, Protocol

from coordinator.core.events import NodeDrainAsked, ReplanAsked
from coordinator.core.view import NodeView
from coordinator.dashboard.live import Action
from coordinator.dashboard.sources import Sources
from plait import log
from plait.types import NodeId

DRAIN_LIMIT_MS: Final = 10_000
BANNED_LIMIT_MS: Final = 1
"""What runs on a banned node is not waited for; it goes on elsewhere."""

_log = log.get("dashboard")


class Notices(Protocol):
    """Where the page shows what became of an action: its frame."""

    def say(self, message: str, *, tone: str = "ok") -> None: ...


async def act_on_network(frame: Notices, sources: Sources, action: Action) -> bool:
    """Drain, ban, unban or plan again; whether the action was one of these. Raises PlaitError."""
    match action.name:
        case "drain":
            drain(frame, sources, action.value)
        case "ban":
            await ban(frame, sources, action.value)
        case "unban":
            await sources.register.ban(NodeId(action.value), is_banned=False)
            sources.known_nodes.forget()
            frame.say(f"{_name(sources, action.value)} may come back: its owner starts it again.")
        case "replan":
            sources.inbox.post(ReplanAsked())
            frame.say("A new plan is being made. Nodes on which requests run keep their layers.")
        case _:
            return False
    _log.info("dashboard_action", action=action.name, value=action.value)
    return True


def drain(frame: Notices, sources: Sources, value: str) -> None:
    """`value` names a node and the incarnation that was shown."""
    node_id, _, incarnation = value.partition(" ")
    node = _node(sources, node_id)
    name = _name(sources, node_id)
    if node is None or node.state == "gone":
        frame.say(f"Nothing to drain: {name} has just left the network.", tone="warn")
        return
    if incarnation and str(node.incarnation) != incarnation:
        frame.say(
            f"Nothing was done: {name} has restarted since this was drawn. Look again, and drain "
            "it if you still want to.",
            tone="warn",
        )
        return
    if node.state == "draining":
        frame.say(f"{name} drains already.")
        return
    sources.inbox.post(
        NodeDrainAsked(
            node_id=NodeId(node_id),
            incarnation=node.incarnation,
            reason="the operator asked for it",
            limit_ms=DRAIN_LIMIT_MS,
        )
    )
    frame.say(f"{name} drains: it finishes what runs and takes nothing new.")


async def ban(frame: Notices, sources: Sources, node_id: str) -> None:
    """Out now if it is here, and kept out. Raises InvalidRequestError for one that never was."""
    await sources.register.ban(NodeId(node_id), is_banned=True)
    sources.known_nodes.forget()
    name = _name(sources, node_id)
    if _node(sources, node_id) is None:
        frame.say(f"{name} is banned. It was not attached: it cannot join again.")
        return
    sources.inbox.post(
        NodeDrainAsked(
            node_id=NodeId(node_id),
            incarnation=None,
            reason="the operator banned it",
            limit_ms=BANNED_LIMIT_MS,
        )
    )
    frame.say(f"{name} is banned: it is put out now and cannot join again.")


def _node(sources: Sources, node_id: str) -> NodeView | None:
    """As of now, not as of when it was drawn."""
    return next((n for n in sources.views.view().nodes if n.node_id == node_id), None)


def _name(sources: Sources, node_id: str) -> str:
    return sources.snapshot.current().name(node_id)
