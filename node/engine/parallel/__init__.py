"""Tensor parallelism: one stage held by a group of ranks, each with a part of every layer."""
