"""What the pages are made of."""

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.dashboard.cached import Cached
from coordinator.dashboard.sessions import SessionStore
from coordinator.dashboard.snapshot import SharedSnapshot
from coordinator.ports import (
    ChronicleReader,
    Inbox,
    KeyStore,
    KnownNode,
    NodeRegister,
    PastRequest,
    PlanPreviewer,
    RequestArchive,
    TokenStore,
    ViewSource,
)
from plait.clock import Clock
from plait.types import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """One for all viewers. `views` is the network as of now, for who is about to act on it."""

    snapshot: SharedSnapshot
    views: ViewSource
    keys: KeyStore
    tokens: TokenStore
    register: NodeRegister
    archive: RequestArchive
    chronicle: ChronicleReader
    previewer: PlanPreviewer
    inbox: Inbox
    sessions: SessionStore
    clock: Clock
    join_address: str
    specs: Sequence[ModelSpec]
    known_nodes: Cached[Sequence[KnownNode]]
    past_requests: Cached[tuple[Sequence[PastRequest], int]]
