"""The node daemon: holds a span of a model's layers and serves stages of requests.

Must never import coordinator, scheduler or plait.sdk.
"""
