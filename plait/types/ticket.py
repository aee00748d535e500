"""What a route ticket promises, once its signature has been checked."""

from dataclasses import dataclass

from plait.types.ids import ModelId, NodeId, RequestId
from plait.types.model import DType
from plait.types.span import LayerSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketStage:
    """One stage of a ticket's route. `addresses` are host:port, best first; `wire_dtype` is that of
    activations from here to the next stage, None: the ticket's."""

    node_id: NodeId
    incarnation: int
    span: LayerSpan
    addresses: tuple[str, ...]
    wire_dtype: DType | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTicket:
    """The right to open one request on a chain of nodes. Times are the coordinator's wall clock.

    `kv_tokens` slots are reserved on every stage; `wire_dtype` is that of activations on the hops
    whose stage names none.
    `cache_salt` begins the names of its KV blocks, empty where nothing is to be kept. A request
    with a smaller `admission` was admitted earlier: where KV runs short, it goes first on every
    stage.
    `client_tag` is the coordinator's own word for whose request it is, and says nothing to others.
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
    client_tag: bytes = b""

    def hop_dtype(self, stage_index: int) -> DType:
        """Of activations from a stage to the next one."""
        return self.stages[stage_index].wire_dtype or self.wire_dtype
