"""Frames between nodes, and between a node and the gateway.

Owns the node's server, its streams with neighbours and its stream to the gateway. Must never
import torch, node.engine or node.agent, and never blocks the engine.
"""
