"""What a route ticket promises, once its signature has been checked."""

from dataclasses import dataclass

from plait.types.ids import ModelId, NodeId, RequestId
from plait.types.model import DType
from plait.types.span import LayerSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketStage:
    """One stage of a ticket's route. `addresses` are host:port, best first."""

    node_id: NodeId
    incarnation: int
    span: LayerSpan
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTicket:
    """The right to open one request on a chain of nodes. Times are the coordinator's wall clock.

    `kv_tokens` slots are reserved on every stage; `wire_dtype` is that of activations on the hops.
    `cache_salt` begins the names of its KV blocks, empty where nothing is to be kept. A request
    with a smaller `admission` was admitted earlier: where KV runs short, it goes first on every
    stage.
    """

    ticket_id: str
    network_id: str
    request_id: RequestId
    epoch: int
    model_id: ModelId
    stages: tuple[TicketStage, ...]
    kv_tokens: int
    issued_unix_ms: int
    expires_unix_ms: int
    wire_dtype: DType
    cache_salt: bytes = b""
    admission: int = 0
