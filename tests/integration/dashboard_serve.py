"""A process that serves the dashboard over a fake network: port, then "whole" or "broken".

Prints the one-time login path when it is up.
"""

import sys

import uvicorn
from fastapi import FastAPI

from coordinator.dashboard.mount import mount
from coordinator.shell.telemetry_view import TelemetryView
from plait.clock import SystemClock
from plait.types import NodeId
from plait.wire.telemetry import (
    Telemetry,
    TelemetryReading,
    TopicKind,
    default_prefix,
    encode_telemetry,
    node_topic,
)
from tests.kit.inbox import ListInbox
from tests.kit.stores import MemoryTokens
from tests.unit.dashboard.fake_sources import (
    SPEC,
    FakeArchive,
    FakePreviewer,
    FakeRegister,
    FakeRoutes,
    fake_chronicle,
)
from tests.unit.dashboard.fakes import FakeViews, admin_and_client


def main() -> None:
    port, how = int(sys.argv[1]), sys.argv[2]
    app, clock, prefix = FastAPI(), SystemClock(), default_prefix("0123456789abcdef")
    telemetry, inbox = TelemetryView(prefix=prefix, clock=clock), ListInbox()
    telemetry.is_connected = True
    reading = Telemetry(
        incarnation=1,
        connection=1,
        sequence=1,
        sent_unix_ms=1,
        readings_dropped_total=0,
        reading=TelemetryReading(state="serving"),
    )
    topic = node_topic(prefix, NodeId("nabcdefgh00000000"), TopicKind.TELEMETRY)
    telemetry.take(topic, encode_telemetry(reading))
    dashboard = mount(
        app,
        views=FakeViews(is_whole=how == "whole"),
        telemetry=telemetry,
        keys=admin_and_client(),
        tokens=MemoryTokens(),
        register=FakeRegister(),
        archive=FakeArchive(120),
        routes=FakeRoutes(),
        chronicle=fake_chronicle(clock),
        previewer=FakePreviewer(num_held=2),
        inbox=inbox,
        clock=clock,
        join_address="plait.example.org:7420",
        specs=(SPEC,),
    )

    @app.get("/events")
    async def events() -> list[str]:
        return [type(event).__name__ for event in inbox.events]

    print(dashboard.new_login_path(), flush=True)  # noqa: T201 - read by the test
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
