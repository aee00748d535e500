"""The store's tables. Times are wall-clock ms; digests are sha256 of secrets, never the secrets."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

SCHEMA_VERSION: Final = 3

metadata: Final = MetaData()

schema_version: Final = Table(
    "plait_schema", metadata, Column("version", Integer, primary_key=True, autoincrement=False)
)

api_keys: Final = Table(
    "api_keys",
    metadata,
    Column("key_id", String(32), primary_key=True),
    Column("digest", LargeBinary(32), nullable=False),
    Column("display_name", String(128), nullable=False),
    Column("is_admin", Boolean, nullable=False),
    Column("is_revoked", Boolean, nullable=False),
    Column("created_unix_ms", BigInteger, nullable=False),
    Column("weight", Float, nullable=False, server_default="1"),
    # Limits; 0: none. Models are a JSON list; an empty one: all of them.
    Column("requests_per_min", BigInteger, nullable=False, server_default="0"),
    Column("tokens_per_min", BigInteger, nullable=False, server_default="0"),
    Column("models", Text, nullable=False, server_default="[]"),
    Column("expires_unix_ms", BigInteger, nullable=False, server_default="0"),
)

enrolment_tokens: Final = Table(
    "enrolment_tokens",
    metadata,
    Column("token_id", String(32), primary_key=True),
    Column("digest", LargeBinary(32), nullable=False),
    Column("display_name", String(128), nullable=False),
    Column("created_unix_ms", BigInteger, nullable=False),
    Column("expires_unix_ms", BigInteger, nullable=False),
    Column("is_revoked", Boolean, nullable=False),
    Column("used_unix_ms", BigInteger, nullable=True),
    Column("node_id", String(32), nullable=True),
)

nodes: Final = Table(
    "nodes",
    metadata,
    Column("node_id", String(32), primary_key=True),
    Column("identity_key", LargeBinary(32), nullable=False),
    Column("display_name", String(128), nullable=False),
    Column("first_seen_unix_ms", BigInteger, nullable=False),
    Column("last_seen_unix_ms", BigInteger, nullable=False),
    Column("is_banned", Boolean, nullable=False),
)

node_sessions: Final = Table(
    "node_sessions",
    metadata,
    Column("node_id", String(32), primary_key=True),
    Column("sessions_ms", Text, nullable=False),
    Column("heard_unix_ms", BigInteger, nullable=False),
)

finished_routes: Final = Table(
    "finished_routes",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("request_id", String(64), nullable=False),
    # coordinator.core.view.RequestView, and names of nodes by id; both as JSON.
    Column("request", Text, nullable=False),
    Column("names", Text, nullable=False),
    Index("finished_routes_by_id", "request_id"),
)

finished_requests: Final = Table(
    "finished_requests",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("request_id", String(64), nullable=False),
    Column("model_id", String(256), nullable=False),
    Column("key_id", String(64), nullable=False),
    Column("finish_reason", String(32), nullable=False),
    Column("reason", String(64), nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("generated_tokens", Integer, nullable=False),
    Column("num_attempts", Integer, nullable=False),
    Column("ttft_ms", Float, nullable=True),
    Column("total_ms", Float, nullable=False),
    Column("finished_unix_ms", BigInteger, nullable=False),
    Index("finished_requests_by_key", "key_id", "sequence"),
)
