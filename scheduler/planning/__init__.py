"""Phase 1 for whole pools and clusters: replica patterns over classes, arc-flow over boundaries.

Needs numpy and a solver; nothing here is imported by the coordinator's core.
"""
