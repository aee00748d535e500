"""Keeps gRPC's C core from writing its own lines, e.g. of a failed handshake, on our caller's
terminal: what failed is raised. Loaded before gRPC, which looks at its environment only then."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
