"""What the coordinator's parts ask of each other. shell, gateway and dashboard are strangers;
`coordinator.main` hands each one what it needs by these names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from coordinator.core.effects import NodeEffect, RequestEffect
from coordinator.core.events import Event
from coordinator.core.view import NetworkView, RequestView
from plait.types import NodeId, Reason
from plait.wire.telemetry import PresenceState, Telemetry
from scheduler.allocation.problem import Allocation, AllocationProblem


class Inbox(Protocol):
    """The way into the core."""

    def post(self, event: Event) -> None:
        """Hand in one event; never blocks. Raises OverloadedError when the inbox is full."""
        ...


class ViewSource(Protocol):
    """One snapshot for all viewers, refreshed at most a few times a second."""

    def view(self) -> NetworkView: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTelemetry:
    """What a node's MQTT topics say. Ages in ms; None: nothing heard yet."""

    node_id: NodeId
    presence: PresenceState | None
    presence_age_ms: int | None
    telemetry: Telemetry | None
    telemetry_age_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryHealth:
    """How the telemetry link itself does. `dropped` counts payloads refused, by reason."""

    is_connected: bool
    messages_total: int
    dropped: tuple[tuple[str, int], ...]


class TelemetryReader(Protocol):
    """Telemetry as last heard; for people, never for routing."""

    def nodes(self) -> Sequence[NodeTelemetry]:
        """In order of node id."""
        ...

    def health(self) -> TelemetryHealth: ...


class NodeActor(Protocol):
    """Performs effects on nodes: the shell's control service. Must neither await nor raise."""

    def perform_node(self, effect: NodeEffect) -> None: ...


class RequestActor(Protocol):
    """Performs effects on requests: the gateway's relay. Must neither await nor raise."""

    def perform_request(self, effect: RequestEffect) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """What a client's key may ask for. None: as much as there is; no models: all of them.
    Tokens are those of prompts and of answers; from `expires_unix_ms` on the key is refused."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    models: tuple[str, ...] = ()
    expires_unix_ms: int | None = None


UNLIMITED: Final = KeyLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A client's or operator's key, without its secret. `weight`: tokens it is served in the time
    in which a key of 1 is served one, while both wait."""

    key_id: str
    display_name: str
    is_admin: bool
    is_revoked: bool
    created_unix_ms: int
    weight: float = 1.0
    limits: KeyLimits = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentToken:
    """A single-use right to join, without its secret. `state`: unused, used, expired, revoked."""

    token_id: str
    display_name: str
    state: str
    expires_unix_ms: int
    node_id: str | None


class KeyStore(Protocol):
    """Client keys. Secrets are stored hashed and shown once."""

    async def create_key(
        self,
        *,
        display_name: str,
        is_admin: bool,
        weight: float = 1.0,
        limits: KeyLimits = UNLIMITED,
    ) -> tuple[str, ApiKey]:
        """The secret (shown once) and its entry."""
        ...

    async def verify_key(self, secret: str) -> ApiKey:
        """Raises AuthenticationError for an unknown or revoked key."""
        ...

    async def list_keys(self) -> Sequence[ApiKey]: ...

    async def revoke_key(self, key_id: str) -> None:
        """Raises InvalidRequestError(reason="not_found")."""
        ...

    async def weigh_key(self, key_id: str, weight: float) -> None:
        """Give a key another weight. Raises InvalidRequestError, also (reason="not_found")."""
        ...

    async def limit_key(self, key_id: str, limits: KeyLimits) -> None:
        """Give a key other limits. Raises InvalidRequestError, also (reason="not_found")."""
        ...


class TokenStore(Protocol):
    """Enrolment tokens."""

    async def create_token(self, *, display_name: str, valid_s: int) -> tuple[str, EnrolmentToken]:
        """The token string to hand to a volunteer (shown once) and its entry."""
        ...

    async def list_tokens(self) -> Sequence[EnrolmentToken]: ...

    async def revoke_token(self, token_id: str) -> None:
        """Raises InvalidRequestError(reason="not_found")."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChronicleEntry:
    """Something that happened to nodes, plans or requests, in a sentence without names. `number`
    rises; `kind` groups what is alike; `tone` is ok, busy, calm, warn or bad; ids are "" where
    none is concerned, `other_id` is the second node of a hop."""

    number: int
    at_unix_ms: int
    kind: str
    tone: str
    text: str
    node_id: str = ""
    other_id: str = ""
    request_id: str = ""


class ChronicleReader(Protocol):
    """What happened of late."""

    def page(
        self, *, offset: int, limit: int, node_id: str = "", kind: str = ""
    ) -> tuple[Sequence[ChronicleEntry], int]:
        """Entries, the newest first, and how many there are in all."""
        ...


class KnownNode(Protocol):
    """A node that was let in once, here or not."""

    @property
    def node_id(self) -> NodeId: ...
    @property
    def display_name(self) -> str: ...
    @property
    def first_seen_unix_ms(self) -> int: ...
    @property
    def last_seen_unix_ms(self) -> int: ...
    @property
    def is_banned(self) -> bool: ...


class NodeRegister(Protocol):
    """Nodes that were let in, and which of them are banned."""

    async def find(self, node_id: NodeId) -> KnownNode | None: ...

    async def list_nodes(self) -> Sequence[KnownNode]:
        """The newest first."""
        ...

    async def ban(self, node_id: NodeId, *, is_banned: bool = True) -> None:
        """Raises InvalidRequestError(reason="not_found")."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRequest:
    """How one request ended, as the store keeps it. Times in ms; `ttft_ms` None where no token
    came."""

    request_id: str
    model_id: str
    key_id: str
    finish_reason: str
    reason: str
    prompt_tokens: int
    generated_tokens: int
    num_attempts: int
    ttft_ms: float | None
    total_ms: float
    finished_unix_ms: int


class RequestArchive(Protocol):
    """Requests that ended, long ago too."""

    async def page(
        self, *, offset: int, limit: int, model_id: str = "", key_id: str = "", outcome: str = ""
    ) -> tuple[Sequence[PastRequest], int]:
        """Requests, the newest first, and how many there are in all; `outcome` is a finish
        reason."""
        ...

    async def find(self, request_id: str) -> PastRequest | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRequest:
    """A request that ended, whole: where it ran and why. `names` are what people called the nodes
    that it names."""

    request: RequestView
    names: Mapping[str, str]


class RouteArchive(Protocol):
    """The last requests that ended, whole, over restarts."""

    async def recent(self, limit: int) -> Sequence[KeptRequest]:
        """The newest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPreview:
    """What the planner answers to a question that nobody has to act on: a plan, or why none."""

    plan: Allocation | None
    reason: Reason | None


class PlanPreviewer(Protocol):
    """Plans that are only looked at."""

    def question(self, *, may_move_busy: bool = False) -> AllocationProblem | None:
        """What asking for a plan would ask by now; None where nothing may move. `may_move_busy`:
        as if nothing ran."""
        ...

    async def preview(self, problem: AllocationProblem) -> PlanPreview:
        """The planner's answer, from a process of its own. Raises OverloadedError while another
        preview is being made."""
        ...
