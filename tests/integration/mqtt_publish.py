"""A process that publishes telemetry until it is killed: URL, prefix, node id, user, password."""

import asyncio
import random
import sys

from node.agent.telemetry import TelemetryPublisher
from plait.clock import SystemClock
from plait.types import NodeId
from plait.wire.mqtt import BrokerAddress
from plait.wire.telemetry import TelemetryReading


class _Source:
    def reading(self) -> TelemetryReading:
        return TelemetryReading(state="serving")


def main() -> None:
    url, prefix, node_id, username, password = sys.argv[1:6]
    address = BrokerAddress.parse(url, default_host="127.0.0.1")
    publisher = TelemetryPublisher(
        address=address.with_credentials(username, password),
        prefix=prefix,
        node_id=NodeId(node_id),
        incarnation=1,
        source=_Source(),
        clock=SystemClock(),
        rng=random.Random(1),
        interval_s=0.2,
    )
    asyncio.run(publisher.run())


if __name__ == "__main__":
    main()
