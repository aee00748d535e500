"""Names of things. All are plain strings or integers on the wire."""

from typing import NewType

NodeId = NewType("NodeId", str)
"""Derived from a node's Ed25519 identity key: "n" and 16 base32 characters."""

RequestId = NewType("RequestId", str)
"""Drawn by the gateway or the client: at most 32 characters of [A-Za-z0-9_-]."""

ModelId = NewType("ModelId", str)
"""The name that clients use for a model."""

PipelineId = NewType("PipelineId", int)
"""An opened route, counted by the coordinator's core."""
