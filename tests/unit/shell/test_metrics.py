"""What Prometheus reads, and who may read it."""

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from coordinator.shell.latencies import Latencies
from coordinator.shell.metrics import metrics_router
from coordinator.shell.telemetry_view import TelemetryView
from plait.clock import ManualClock
from plait.types import ModelId
from plait.wire.telemetry import Presence, PresenceState, encode_presence
from tests.unit.dashboard.fakes import ADMIN_KEY, CLIENT_KEY, FakeViews, admin_and_client


def waited() -> Latencies:
    latencies = Latencies()
    latencies.ended(ModelId("m"), 400, 1_400, 11)
    latencies.ended(ModelId("m"), 3_000, 3_000, 1)
    latencies.ended(ModelId("m"), None, 9_000, 0)
    return latencies


async def ask(authorization: str) -> httpx.Response:
    app = FastAPI()
    telemetry = TelemetryView(prefix="p", clock=ManualClock())
    telemetry.take("elsewhere", b"{}")
    for node_id, state in (("na", PresenceState.LOST), ("nb", PresenceState.ONLINE)):
        presence = Presence(state=state, incarnation=1, connection=1)
        telemetry.take(f"p/node/{node_id}/presence", encode_presence(presence))
    app.include_router(
        metrics_router(
            views=FakeViews(), telemetry=telemetry, keys=admin_and_client(), latencies=waited()
        )
    )
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://plait.test") as client:
        return await client.get("/metrics", headers={"authorization": authorization})


async def test_figures_are_those_of_the_snapshot() -> None:
    answer = await ask(f"Bearer {ADMIN_KEY}")
    assert answer.status_code == 200
    samples = {
        (sample.name, tuple(sorted(sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["plait_tokens_generated_total", ()] == 1_244
    assert samples["plait_nodes", ("serving",)] == 3
    assert samples["plait_model_replicas_min", ("smollm2-135m-instruct",)] == 1
    assert samples["plait_node_stage_ms", ("lab-4090", "nabcdefgh00000001")] == 6.1
    assert samples["plait_telemetry_dropped_total", ("topic_foreign",)] == 1
    assert samples["plait_telemetry_messages_total", ()] == 3
    assert samples["plait_telemetry_nodes", ("lost",)] == 1
    assert samples["plait_tasks", ()] >= 1
    assert samples["plait_telemetry_nodes", ("left",)] == 0
    assert samples["plait_request_ttft_seconds_count", ("m",)] == 2
    assert samples["plait_request_ttft_seconds_bucket", ("0.5", "m")] == 1
    assert samples["plait_request_ttft_seconds_bucket", ("5.0", "m")] == 2
    assert samples["plait_request_inter_token_seconds_count", ("m",)] == 1
    assert samples["plait_request_inter_token_seconds_sum", ("m",)] == pytest.approx(0.1)
    assert samples["plait_request_generated_tokens_sum", ("m",)] == 12


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        (f"Basic {ADMIN_KEY}", 401),
        ("Bearer " + "x" * 600, 401),
        (f"Bearer {CLIENT_KEY}", 403),
    ],
)
async def test_others_see_nothing(authorization: str, status: int) -> None:
    answer = await ask(authorization)
    assert answer.status_code == status
    assert "plait_" not in answer.text
