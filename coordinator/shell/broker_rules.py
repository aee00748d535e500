"""Who may do what on the embedded broker. Loaded by amqtt by name.

A node may publish, and leave as its will, what belongs on its own two topics, and may read
nothing. The coordinator may read everything below the prefix and publish nothing.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

from amqtt.contexts import Action, BaseContext
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from plait.types import NodeId
from plait.wire.telemetry import TopicKind, all_nodes_filter, node_topic

LISTENER_NAME: Final = "coordinator"
"""The coordinator's user name; no node id looks like it."""


def broker_password(secret: bytes, username: str) -> str:
    """The password of a node id or of the coordinator, as 64 hex digits (HMAC-SHA256)."""
    return hmac.new(secret, b"plait-mqtt-v1\0" + username.encode(), hashlib.sha256).hexdigest()


def own_topics(prefix: str, username: str) -> frozenset[str]:
    """What a node may publish to."""
    return frozenset(node_topic(prefix, NodeId(username), kind) for kind in TopicKind)


@dataclass
class RulesConfig:
    """What both rules need to know."""

    prefix: str
    secret: bytes = field(repr=False)


class PasswordRule(BaseAuthPlugin):  # type: ignore[misc]  # amqtt is untyped here
    """Checks the derived password, and that the last will stays on the user's own topics."""

    Config = RulesConfig

    def __init__(self, context: BaseContext) -> None:
        super().__init__(context)
        self._rules: RulesConfig = context.config

    async def authenticate(self, *, session: Session) -> bool:
        username, password = session.username or "", session.password or ""
        expected = broker_password(self._rules.secret, username)
        if not hmac.compare_digest(expected.encode(), str(password).encode()):
            return False
        # The broker publishes a will without asking the topic rule.
        return not session.will_flag or session.will_topic in own_topics(
            self._rules.prefix, username
        )


class TopicRule(BaseTopicPlugin):  # type: ignore[misc]  # amqtt is untyped here
    """Holds every user to its own topics."""

    Config = RulesConfig

    def __init__(self, context: BaseContext) -> None:
        super().__init__(context)
        self._rules: RulesConfig = context.config

    async def topic_filtering(
        self,
        *,
        session: Session | None = None,
        topic: str | None = None,
        action: Action | None = None,
    ) -> bool:
        if session is None or topic is None:
            return False
        if session.username == LISTENER_NAME:
            prefix = self._rules.prefix
            is_reading = topic == all_nodes_filter(prefix) or topic.startswith(f"{prefix}/node/")
            return action in (Action.SUBSCRIBE, Action.RECEIVE) and is_reading
        return action is Action.PUBLISH and topic in own_topics(
            self._rules.prefix, session.username or ""
        )
