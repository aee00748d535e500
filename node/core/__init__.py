"""The node's decisions: event in, effects out. Pure and deterministic.

Owns the node's lifecycle and its stage sessions. Must never import asyncio, grpc, torch or a clock.
"""

from node.core.core import NodeCore

__all__ = ["NodeCore"]
