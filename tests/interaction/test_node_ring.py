"""Whole rings of nodes over real gRPC: tokens come back, and everything is given back."""

import asyncio
import contextlib
from dataclasses import replace

import grpc
import pytest

from node.core.state import Limits
from node.transport.flow import FlowLimits
from node.transport.links import SPARE_STREAMS_MAX
from plait.crypto.identity import new_ed25519
from plait.crypto.tickets import TicketSigner
from plait.types import FinishReason
from tests.unit.node.fake_engine import expected_tokens
from tests.unit.node.ring import Ring, ring, until
from tests.unit.node.rogue import Rogue

PERMISSION_DENIED: int = grpc.StatusCode.PERMISSION_DENIED.value[0]


@pytest.mark.parametrize("num_nodes", [1, 2, 3])
async def test_a_request_goes_round_and_its_tokens_come_back(num_nodes: int) -> None:
    async with ring(num_nodes) as made:
        prompt = list(range(1, 301))
        ticket = made.ticket("r1", kv_tokens=400)
        await made.start("r1", prompt, max_new_tokens=20, ticket=ticket)
        await until(lambda: made.gateway.finish("r1") is not None, what="the last token")
        assert made.gateway.tokens("r1") == expected_tokens(prompt, 20, made.spec)
        assert made.gateway.finish("r1") is FinishReason.LENGTH
        assert made.gateway.is_opened("r1")
        await until(made.is_free, limit_s=1.0, what="KV given back")


async def test_many_requests_share_the_same_streams() -> None:
    async with ring(3, flow=FlowLimits(window_frames=4, credit_batch_frames=2)) as made:
        prompts = {f"r{i}": list(range(i + 1, i + 40)) for i in range(12)}
        for name, prompt in prompts.items():
            await made.start(name, prompt, max_new_tokens=16)
        for name, prompt in prompts.items():
            await until(lambda name=name: made.gateway.finish(name) is not None)  # type: ignore[misc]
            assert made.gateway.tokens(name) == expected_tokens(prompt, 16, made.spec)
        assert len(made.nodes[0].links.stats()) == 2
        await until(made.is_free, limit_s=1.0)


async def test_two_neighbours_share_one_stream_whoever_dialled() -> None:
    async with ring(2) as made:
        await made.start("r1", [1, 2, 3])
        await until(lambda: made.gateway.finish("r1") is not None)
        first, last = made.nodes
        (there,), (back,) = first.links.stats(), last.links.stats()
        assert there.sent_frames > 0
        assert back.sent_frames > 0
        assert len(last.links.dialled()) == 0, "the token went back over the stream that was open"


async def test_a_decode_step_costs_the_row_and_at_most_128_bytes() -> None:
    async with ring(3) as made:
        await made.start("long", list(range(400)), ticket=made.ticket("long", kv_tokens=600))
        await until(lambda: made.gateway.finish("long") is not None)
        before = made.nodes[1].links.sent_to(made.nodes[2].node_id)
        ticket = made.ticket("r1", kv_tokens=600)
        await made.start("r1", list(range(500)), max_new_tokens=64, ticket=ticket)
        await until(lambda: made.gateway.finish("r1") is not None)
        frames, num_bytes = made.nodes[1].links.sent_to(made.nodes[2].node_id)
        row_bytes = made.spec.hidden_size * 4
        prefill_rows = 500
        overhead = num_bytes - before[1] - (prefill_rows + 63) * row_bytes
        assert overhead <= 128 * (frames - before[0])


async def test_a_stop_token_ends_the_request_on_all_nodes() -> None:
    async with ring(3) as made:
        tokens = expected_tokens([1, 2, 3], 5, made.spec)
        await made.start("r1", [1, 2, 3], max_new_tokens=50, stop_token_ids=[tokens[4]])
        await until(lambda: made.gateway.finish("r1") is not None)
        assert made.gateway.finish("r1") is FinishReason.STOP
        assert made.gateway.tokens("r1") == tokens
        await until(made.is_free, limit_s=1.0)


async def test_a_closed_request_frees_all_kv_within_a_second() -> None:
    async with ring(3) as made:
        for kit in made.nodes:
            kit.engine.is_paused = True
        await made.start("r1", [1, 2, 3], max_new_tokens=200)
        await until(lambda: all(kit.engine.reserved > 0 for kit in made.nodes))
        await made.close("r1")
        await until(made.is_free, limit_s=1.0, what="KV given back")
        await made.close("r1")


async def test_without_kv_the_gateway_hears_which_stage() -> None:
    async with ring(3, kv_tokens_max=100) as made:
        made.nodes[2].engine.kv_tokens_max = 10
        await made.start("r1", [1, 2, 3], ticket=made.ticket("r1", kv_tokens=50))
        await until(lambda: bool(made.gateway.broken("r1")))
        broken = made.gateway.broken("r1")[0]
        assert (broken.node_id, broken.stage_index, broken.status.code) == ("n2", 2, 8)
        assert broken.status.reason == "kv_full"
        await until(made.is_free, limit_s=1.0)


@pytest.mark.parametrize("victim", [1, 2])
async def test_a_killed_neighbour_is_named_to_the_gateway(victim: int) -> None:
    async with ring(3) as made:
        made.nodes[2].engine.is_paused = True
        await made.start("r1", [1, 2, 3])
        await until(lambda: made.nodes[2].engine.reserved > 0)
        await made.nodes[victim].kill()
        await until(lambda: bool(made.gateway.broken("r1")), what="the gateway hears")
        broken = made.gateway.broken("r1")[0]
        assert (broken.node_id, broken.status.code) == (f"n{victim}", 14)
        assert broken.status.reason == "hop_lost"
        survivors = [kit for kit in made.nodes if kit.node_id != f"n{victim}"]
        await until(lambda: all(kit.engine.reserved == 0 for kit in survivors), limit_s=1.0)


async def test_a_neighbour_that_cannot_be_dialled_is_named() -> None:
    async with ring(3) as made:
        made.nodes[1].address = "127.0.0.1:1"
        await made.start("r1", [1, 2, 3])
        await until(lambda: bool(made.gateway.broken("r1")))
        assert made.gateway.broken("r1")[0].node_id == "n1"
        await until(made.is_free, limit_s=1.0)


async def test_a_short_cut_of_the_gateways_link_loses_no_token() -> None:
    async with ring(2) as made:
        made.nodes[1].engine.is_paused = True
        await made.start("r1", [1, 2, 3], max_new_tokens=10)
        await until(lambda: made.gateway.is_opened("r1"))
        port = made.gateway.port
        await made.gateway.stop()
        await until(lambda: not any(kit.gateway.is_up for kit in made.nodes))
        made.nodes[1].engine.resume()
        await made.gateway.start(port)
        await until(lambda: made.gateway.finish("r1") is not None)
        assert made.gateway.tokens("r1") == expected_tokens([1, 2, 3], 10, made.spec)


async def test_a_gateway_that_cancels_the_link_finds_it_back() -> None:
    async with ring(1) as made:
        made.gateway.num_cancels = 1
        port = made.gateway.port
        await made.gateway.stop()
        await made.gateway.start(port)
        await until(lambda: made.gateway.num_attached == 3, limit_s=10, what="a third attach")
        await until(lambda: made.nodes[0].gateway.is_up)
        await made.start("r1", [1, 2, 3])
        await until(lambda: made.gateway.finish("r1") is not None)


# Tickets


async def _refused(made: Ring, request: str, reason: str) -> None:
    await until(lambda: bool(made.gateway.broken(request)), what=f"{reason} is answered")
    broken = made.gateway.broken(request)[0]
    assert (broken.status.code, broken.status.reason) == (PERMISSION_DENIED, reason)
    assert made.is_free()


async def test_bad_tickets_at_the_gateways_door_reserve_nothing() -> None:
    async with ring(2) as made:
        first, last = made.nodes
        forged = made.ticket("forged", signer=TicketSigner(new_ed25519()))
        expired = made.ticket("expired", valid_ms=-600_000)
        swapped = [replace(last, span=first.span), replace(first, span=last.span)]
        hop = made.ticket("hop", nodes=swapped)
        cut = made.ticket("cut", nodes=[first])
        for name, ticket, reason in (
            ("forged", forged, "ticket_forged"),
            ("expired", expired, "ticket_expired"),
            ("hop", hop, "ticket_wrong_hop"),
            ("cut", cut, "ticket_malformed"),
        ):
            await made.start(name, [1, 2], ticket=ticket)
            await _refused(made, name, reason)
        assert [kit.engine.max_reserved for kit in made.nodes] == [0, 0]
        assert first.runtime.core.counters.tickets_refused == 4


async def test_a_replayed_ticket_is_denied_and_the_running_request_goes_on() -> None:
    async with ring(2) as made:
        ticket = made.ticket("r1")
        made.nodes[1].engine.is_paused = True
        await made.start("r1", [1, 2], ticket=ticket)
        await until(lambda: made.gateway.is_opened("r1"))
        reserved = [kit.engine.max_reserved for kit in made.nodes]
        await made.start("r1", [1, 2], ticket=ticket)
        await until(lambda: bool(made.gateway.broken("r1")))
        status = made.gateway.broken("r1")[0].status
        assert (status.code, status.reason) == (PERMISSION_DENIED, "ticket_replayed")
        assert [kit.engine.max_reserved for kit in made.nodes] == reserved
        assert made.nodes[0].runtime.core.num_sessions == 1
        made.nodes[1].engine.resume()
        await until(lambda: made.gateway.finish("r1") is not None)
        assert made.gateway.tokens("r1") == expected_tokens([1, 2], 8, made.spec)


async def test_a_stolen_ticket_is_denied_to_whoever_is_not_in_the_chain() -> None:
    async with ring(2) as made, Rogue("mallory", made.nodes[1].address) as rogue:
        await rogue.open(made.ticket("r1"), stage_index=1)
        broken = await rogue.broken()
        assert (broken.status.code, broken.status.reason) == (PERMISSION_DENIED, "ticket_wrong_hop")
        await rogue.open(made.ticket("r2", signer=TicketSigner(new_ed25519())), stage_index=1)
        broken = await rogue.broken()
        assert (broken.status.code, broken.status.reason) == (PERMISSION_DENIED, "ticket_forged")
        assert made.nodes[1].engine.max_reserved == 0


# Frames


async def test_an_oversize_frame_ends_its_stream_and_the_node_goes_on() -> None:
    async with ring(2) as made, Rogue("mallory", made.nodes[1].address) as rogue:
        await rogue.write(bytes(5 * 1024 * 1024))
        code, details = await rogue.end()
        assert code == "RESOURCE_EXHAUSTED"
        assert "5242880" in details
        await made.start("r1", [1, 2, 3])
        await until(lambda: made.gateway.finish("r1") is not None)


async def test_malformed_and_foreign_frames_are_counted_and_dropped() -> None:
    async with ring(2) as made, Rogue("mallory", made.nodes[1].address) as rogue:
        core = made.nodes[1].runtime.core
        for junk in (b"\xff" * 40, b"\x0a", bytes(1000)):
            await rogue.write(junk)
        await rogue.rows("r1", position=0, payload=b"x")
        await until(lambda: core.counters.frames_dropped >= 4, what="four frames counted")
        await made.start("r1", [1, 2, 3])
        await until(lambda: made.gateway.finish("r1") is not None)
        assert made.gateway.tokens("r1") == expected_tokens([1, 2, 3], 8, made.spec)


async def test_duplicates_are_dropped_and_a_gap_breaks_the_request_alone() -> None:
    async with ring(1) as made:
        node = made.nodes[0]
        # A rogue that stands in the chain as its rightful first stage.
        async with Rogue("first", node.address) as rogue:
            rogue_kit = rogue.as_stage(node, until_layer=2)
            ticket = made.ticket("r1", nodes=rogue_kit)
            await rogue.open(ticket, stage_index=1, prompt_tokens=2)
            row = bytes(made.spec.hidden_size * 4)
            await rogue.rows("r1", position=0, payload=row)
            await rogue.rows("r1", position=0, payload=row)
            core = node.runtime.core
            await until(lambda: core.counters.frames_duplicate == 1)
            await rogue.rows("r1", position=7, payload=row)
            broken = await rogue.broken()
            assert (broken.status.code, broken.status.reason) == (3, "frame_gap")
            assert broken.node_id == "first"
            await until(made.is_free, limit_s=1.0)


async def test_a_silent_neighbour_is_given_up() -> None:
    flow = FlowLimits(ping_s=0.05, silence_s=0.3)
    async with ring(1, flow=flow) as made, Rogue("quiet", made.nodes[0].address) as rogue:
        await rogue.write(rogue.ping())
        await until(lambda: any(link.is_up for link in made.nodes[0].links.stats()))
        code, details = await rogue.end()
        assert (code, "nothing heard" in details) == ("UNAVAILABLE", True)


async def test_a_neighbour_that_takes_nothing_costs_the_requests_that_choke_it() -> None:
    flow = FlowLimits(window_frames=2, queue_frames=4)
    async with ring(1, flow=flow, limits=Limits(prefill_chunk_tokens=1)) as made:
        node = made.nodes[0]
        async with Rogue("last", node.address) as rogue:
            await rogue.write(rogue.ping())
            chain = rogue.as_stage(node, until_layer=2, is_first=False)
            await made.start("r1", list(range(20)), ticket=made.ticket("r1", nodes=chain))
            await until(lambda: bool(made.gateway.broken("r1")))
            assert made.gateway.broken("r1")[0].status.reason == "link_overloaded"
            await until(made.is_free, limit_s=1.0)


async def test_probes_measure_the_way_to_a_neighbour() -> None:
    async with ring(2) as made:
        rtt_ms, bytes_per_s = await made.nodes[0].probe.probe(
            made.nodes[1].node_id, ["127.0.0.1:1", made.nodes[1].address]
        )
        assert 0 < rtt_ms < 1_000
        assert bytes_per_s > 1e5


async def test_round_trips_are_measured_on_the_stream_itself() -> None:
    async with ring(2, flow=FlowLimits(ping_s=0.05)) as made:
        await made.start("r1", [1, 2, 3])
        await until(lambda: made.gateway.finish("r1") is not None)
        await until(lambda: made.nodes[0].links.stats()[0].rtt_ms is not None)
        rtt_ms = made.nodes[0].links.stats()[0].rtt_ms
        assert rtt_ms is not None
        assert 0 < rtt_ms < 1_000
    await asyncio.sleep(0)


async def test_a_repeated_sequence_number_is_dropped_and_counted() -> None:
    async with ring(1) as made, Rogue("echo", made.nodes[0].address) as rogue:
        frame = rogue.ping()
        await rogue.write(frame)
        await rogue.write(frame)
        links = made.nodes[0].links
        await until(lambda: sum(link.sequence_errors for link in links.stats()) == 1)


async def test_a_neighbour_may_not_hoard_streams() -> None:
    async with ring(1) as made, contextlib.AsyncExitStack() as stack:
        node = made.nodes[0]
        for _ in range(SPARE_STREAMS_MAX + 1):
            rogue = await stack.enter_async_context(Rogue("many", node.address))
            await rogue.write(rogue.ping())
            await rogue.pong()
        last = await stack.enter_async_context(Rogue("many", node.address))
        assert (await last.end())[0] == "RESOURCE_EXHAUSTED"


async def test_a_second_stream_takes_over_when_the_first_ends() -> None:
    async with ring(1) as made, Rogue("twice", made.nodes[0].address) as second:
        links = made.nodes[0].links
        async with Rogue("twice", made.nodes[0].address) as first:
            await first.write(first.ping())
            await first.pong()
            await second.write(second.ping())
            await second.pong()
        await until(lambda: links.num_streams(first.node_id) == 1)
        assert links.stats()[0].is_up
        await second.rows("nobody", position=0, payload=b"")
        await until(lambda: made.nodes[0].runtime.core.counters.frames_foreign == 1)
