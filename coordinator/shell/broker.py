"""An MQTT broker inside the coordinator, for networks that have none.

amqtt speaks the protocol; the sockets are ours, so that a connection is bounded before amqtt sees
it: how many there are, how long each may be silent, how long a packet may be. For many nodes, or
untrusted networks, run Mosquitto (docs/telemetry.md).
"""

import asyncio
import contextlib
import logging
import ssl
from dataclasses import dataclass
from typing import Final

from amqtt.adapters import ReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker
from amqtt.errors import NoDataError

from coordinator.shell.broker_rules import LISTENER_NAME, broker_password
from plait import log
from plait.errors import ConfigError
from plait.wire.mqtt import KEEPALIVE_S, BrokerAddress

READ_BYTES_MAX: Final = 65_535
CONNECTIONS_MAX: Final = 1_024
SILENCE_LIMIT_S: Final = 1.5 * KEEPALIVE_S
STOP_LIMIT_S: Final = 8.0
_GATE: Final = "default"
_RULES: Final = "coordinator.shell.broker_rules"

_log = log.get("broker")


class _BoundedReader(ReaderAdapter):  # type: ignore[misc]  # amqtt is untyped here
    """Ends the stream when a read asks for too much or waits too long.

    amqtt itself neither limits a packet's length nor honours a client's keepalive.
    """

    def __init__(self, reader: asyncio.StreamReader, *, silence_limit_s: float) -> None:
        self._reader = reader
        self._silence_limit_s = silence_limit_s
        self._is_over = False

    async def read(self, n: int = -1) -> bytes:
        if self._is_over or not 0 <= n <= READ_BYTES_MAX:
            return self._end()
        try:
            async with asyncio.timeout(self._silence_limit_s):
                return await self._reader.readexactly(n)
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            return self._end()

    def feed_eof(self) -> None:
        self._reader.feed_eof()

    def _end(self) -> bytes:
        self._is_over = True
        return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStats:
    """`num_connections` are open; `refused_total` came when there was no room."""

    num_connections: int
    refused_total: int


class EmbeddedBroker:
    """Start, serve on `port`, stop. Passwords are derived from `secret`, so none is stored."""

    def __init__(
        self,
        *,
        secret: bytes,
        prefix: str,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        connections_max: int = CONNECTIONS_MAX,
        silence_limit_s: float = SILENCE_LIMIT_S,
    ) -> None:
        self._secret = secret
        self._prefix = prefix
        self._host = host
        self._port = port
        self._tls = tls
        self._connections_max = connections_max
        self._silence_limit_s = silence_limit_s
        self._connections: set[asyncio.Task[None]] = set()
        self._refused_total = 0
        self._broker: Broker | None = None
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port bound; 0 before `start`."""
        return self._port

    @property
    def url(self) -> str:
        """For a welcome: no host means the coordinator's own."""
        return f"{'mqtt' if self._tls is None else 'mqtts'}://:{self._port}"

    def stats(self) -> BrokerStats:
        """Counters for metrics and tests."""
        return BrokerStats(
            num_connections=len(self._connections), refused_total=self._refused_total
        )

    def node_credentials(self, node_id: str) -> tuple[str, str]:
        """User name and password of a node, for its welcome."""
        return node_id, broker_password(self._secret, node_id)

    def listener_address(
        self, *, ca_pem: str | None = None, server_name: str | None = None
    ) -> BrokerAddress:
        """How the coordinator's own subscriber reaches this broker."""
        return BrokerAddress(
            host="127.0.0.1" if self._host in ("", "0.0.0.0", "::") else self._host,
            port=self._port,
            uses_tls=self._tls is not None,
            username=LISTENER_NAME,
            password=broker_password(self._secret, LISTENER_NAME),
            ca_pem=ca_pem,
            server_name=server_name,
        )

    async def start(self) -> None:
        """Raises ConfigError where the port is taken."""
        # At "info" amqtt writes several lines a message.
        for name in ("amqtt", "transitions"):
            logging.getLogger(name).setLevel(logging.ERROR)
        rules = {"prefix": self._prefix, "secret": self._secret}
        self._broker = Broker(
            {
                "listeners": {_GATE: {"type": "external"}},
                "plugins": {f"{_RULES}.PasswordRule": rules, f"{_RULES}.TopicRule": rules},
            }
        )
        await self._broker.start()
        try:
            self._server = await asyncio.start_server(
                self._accept, self._host, self._port, ssl=self._tls
            )
        except OSError as error:
            await self.stop()
            raise ConfigError(
                f"the broker cannot listen on {self._host}:{self._port}: {error.strerror}; "
                "free the port or choose another"
            ) from error
        self._port = self._server.sockets[0].getsockname()[1]
        _log.info("broker_listening", host=self._host, port=self._port, tls=bool(self._tls))

    async def stop(self) -> None:
        """Close the port and every connection; no will is published any more."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=STOP_LIMIT_S)
        if self._broker is not None:
            broker, self._broker = self._broker, None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_LIMIT_S):
                    await broker.shutdown()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Root of a connection's task."""
        if self._broker is None or len(self._connections) >= self._connections_max:
            self._refused_total += 1
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        bounded = _BoundedReader(reader, silence_limit_s=self._silence_limit_s)
        try:
            await self._broker.external_connected(bounded, StreamWriterAdapter(writer), _GATE)
        except (NoDataError, OSError) as error:
            _log.debug("broker_connection_ended", error=str(error))
        except Exception as error:  # root: one connection's task
            _log.warning("broker_connection_failed", error=repr(error))
        finally:
            self._connections.discard(task)
            writer.close()
