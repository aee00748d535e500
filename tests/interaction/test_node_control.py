"""The node's side of the control stream, against a coordinator that tests drive."""

import grpc

from node.core.events import StopAsked
from node.ports import NodePhase
from plait.errors import WeightsError
from plait.types import LayerSpan
from plait.wire.v1 import control_pb2
from tests.unit.node.control_kit import attached
from tests.unit.node.fake_engine import tiny_spec
from tests.unit.node.ring import until

SPAN = LayerSpan(0, 3)


async def test_a_node_says_hello_measures_itself_and_beats() -> None:
    async with attached() as (coordinator, node):
        await until(lambda: len(coordinator.of("heartbeat")) >= 3)
        await until(lambda: bool(coordinator.of("profiled")))
        hello = coordinator.reports[0]
        assert (hello.incarnation, hello.hello.display_name) == (77, "one")
        assert list(hello.hello.addresses) == [":7000"]
        assert not hello.hello.HasField("held")
        profiled = coordinator.of("profiled")[0].profiled
        assert profiled.timings[0].model_id == "tiny"
        assert profiled.coordinator_rtt_ms > 0
        assert profiled.up_bytes_per_s > 1e5
        assert profiled.down_bytes_per_s > 1e5
        assert node.welcomes[0].frame_bytes_max == 4 << 20
        assert NodePhase.MEASURING in node.phases()


async def test_a_coordinator_hears_of_models_and_rates_that_the_owner_does_not_allow() -> None:
    specs = [tiny_spec(), tiny_spec(model_id="huge")]
    async with attached(specs, 'models_allow=["t*"]', "up_mbit=1") as (coordinator, node):
        await until(lambda: bool(coordinator.of("profiled")))
        profiled = coordinator.of("profiled")[0].profiled
        assert [timing.model_id for timing in profiled.timings] == ["tiny"]
        assert list(profiled.refused_models) == ["huge"]
        assert 0 < profiled.up_bytes_per_s <= 125_000
        await until(lambda: NodePhase.STANDBY in node.phases())
        assert "without huge (models_allow)" in node.said[-1].detail
        await coordinator.assign(SPAN, model="huge")
        await until(lambda: bool(coordinator.of("load_failed")))
        assert coordinator.of("load_failed")[0].load_failed.status.reason == "model_not_found"


async def test_an_assigned_span_is_loaded_with_progress_and_reported() -> None:
    async with attached() as (coordinator, node):
        await until(lambda: coordinator.num_attached == 1)
        await coordinator.assign(SPAN)
        await until(lambda: bool(coordinator.of("span_loaded")))
        held = coordinator.of("span_loaded")[0].span_loaded.held
        assert (held.span.start, held.span.end, held.allocation_epoch) == (0, 3, 1)
        phases = {report.load_progress.phase for report in coordinator.of("load_progress")}
        assert phases == {"fetching", "loading"}
        details = [p.detail for p in node.said if p.phase is NodePhase.ASSIGNED]
        assert details == ["layers 0-2 of tiny (it is fast)"]
        assert node.phases()[-1] is NodePhase.SERVING


async def test_a_load_that_fails_is_reported_with_its_reason() -> None:
    async with attached() as (coordinator, node):
        node.engine.load_error = WeightsError("truncated", reason="weights_truncated")
        await until(lambda: coordinator.num_attached == 1)
        await coordinator.assign(SPAN)
        await until(lambda: bool(coordinator.of("load_failed")))
        failed = coordinator.of("load_failed")[0].load_failed
        assert (failed.allocation_epoch, failed.status.reason) == (1, "weights_truncated")
        node.engine.load_error = None
        await coordinator.assign(SPAN, epoch=2)
        await until(lambda: bool(coordinator.of("span_loaded")))


async def test_neighbours_are_measured_and_the_unreachable_named() -> None:
    async with attached() as (coordinator, _):
        await until(lambda: coordinator.num_attached == 1)
        probe = control_pb2.ProbeNeighbours(
            neighbours=[
                control_pb2.NeighbourAddress(node_id="near", addresses=["x:1"]),
                control_pb2.NeighbourAddress(node_id="far"),
            ]
        )
        await coordinator.command(control_pb2.NodeCommand(probe_neighbours=probe))
        await until(lambda: len(coordinator.of("neighbour_measured")) == 2)
        near, far = (r.neighbour_measured for r in coordinator.of("neighbour_measured"))
        assert (near.node_id, near.rtt_ms, near.bytes_per_s, near.reachable) == (
            "near",
            1.5,
            2e6,
            True,
        )
        assert (far.node_id, far.reachable) == ("far", False)


async def test_a_node_comes_back_with_what_it_holds_and_measures_no_second_time() -> None:
    async with attached() as (coordinator, node):
        await until(lambda: coordinator.num_attached == 1)
        await coordinator.assign(SPAN)
        await until(lambda: bool(coordinator.of("span_loaded")))
        port = coordinator.port
        await coordinator.stop()
        await until(lambda: NodePhase.OFFLINE in node.phases())
        coordinator.reports.clear()
        coordinator.unix_ms = node.time.unix_ms() - 600_000
        await coordinator.start(port)
        await until(lambda: coordinator.num_attached == 2, limit_s=10)
        held = coordinator.reports[0].hello.held
        assert (held.model_id, held.span.end) == ("tiny", 3)
        await until(lambda: bool(coordinator.of("profiled")))
        assert node.engine.num_loads == 1
        assert node.time.unix_ms() == coordinator.unix_ms, "tickets are dated by its clock"


async def test_a_refusal_for_good_ends_the_node_and_says_why() -> None:
    async with attached() as (coordinator, node):
        await until(lambda: coordinator.num_attached == 1)
        evict = control_pb2.Evict(reason="banned", message="by the operator", may_rejoin=False)
        await coordinator.command(control_pb2.NodeCommand(evict=evict))
        await until(lambda: node.told.exit is not None)
        assert node.told.exit is not None
        assert (node.told.exit.code, node.told.exit.reason.code) == (3, "banned")


async def test_an_incompatible_node_is_told_and_exits() -> None:
    async with attached() as (coordinator, node):
        coordinator.refusal = (grpc.StatusCode.FAILED_PRECONDITION, "upgrade plait")
        await coordinator.stop()
        await coordinator.start(coordinator.port)
        await until(lambda: node.told.exit is not None, limit_s=10)
        assert node.told.exit is not None
        assert node.told.exit.reason.message == "upgrade plait"


async def test_an_evicted_node_that_may_return_returns() -> None:
    async with attached() as (coordinator, node):
        await until(lambda: coordinator.num_attached == 1)
        evict = control_pb2.Evict(reason="lease_lost", message="late", may_rejoin=True)
        await coordinator.command(control_pb2.NodeCommand(evict=evict))
        port = coordinator.port
        await coordinator.stop()
        await coordinator.start(port)
        await until(lambda: coordinator.num_attached == 2, limit_s=10)
        assert node.told.exit is None


async def test_leaving_is_announced_and_reported() -> None:
    async with attached() as (coordinator, node):
        await until(lambda: coordinator.num_attached == 1)
        await until(lambda: node.control.is_attached)
        node.runtime.post(StopAsked("sigterm"))
        await until(lambda: bool(coordinator.of("drained")))
        assert coordinator.of("drain_asked")[0].drain_asked.reason == "sigterm"
        assert node.told.exit is not None
        assert node.told.exit.code == 0


async def test_unknown_commands_and_nonsense_are_ignored() -> None:
    async with attached() as (coordinator, node):
        await until(lambda: coordinator.num_attached == 1)
        await coordinator.command(control_pb2.NodeCommand())
        bad = control_pb2.AssignSpan(allocation_epoch=1, model_id="tiny")
        await coordinator.command(control_pb2.NodeCommand(assign_span=bad))
        await coordinator.assign(SPAN, epoch=2)
        await until(lambda: bool(coordinator.of("span_loaded")))
        assert node.told.exit is None
