"""Requests as OpenTelemetry traces: told at the core's doors, sent when they end (0188)."""
