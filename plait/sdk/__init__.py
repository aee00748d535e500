"""The SDK: a blocking client and one for asyncio.

Owns how programs talk to a network. Imports plait.wire, plait.crypto, plait.config and the
vocabulary; never a role (coordinator, node) and never the scheduler.
"""

from plait.sdk import quiet as _before_grpc  # noqa: F401
from plait.sdk.async_client import AsyncClient, AsyncStream
from plait.sdk.client import Client, Stream
from plait.sdk.requests import GenerateOptions, Messages, Prompt
from plait.sdk.results import (
    Alternative,
    Completion,
    Delta,
    Hop,
    ModelEntry,
    ServiceStatus,
    TokenScore,
    ToolCall,
    ToolCallDelta,
    Waiting,
)

__all__ = [
    "Alternative",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "Completion",
    "Delta",
    "GenerateOptions",
    "Hop",
    "Messages",
    "ModelEntry",
    "Prompt",
    "ServiceStatus",
    "Stream",
    "TokenScore",
    "ToolCall",
    "ToolCallDelta",
    "Waiting",
]
