"""Small parts of the agent: papers, addresses, figures, loads that fail."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from grpc import aio

from node.agent.identity import NodeCredentials
from node.agent.joining import join
from node.agent.meter import NodeMeter
from node.agent.papers import Papers
from node.agent.reports import weights_refusal
from node.agent.runtime import NodeRuntime, travel_ms
from node.choices import own_addresses
from node.config import NodeConfig
from node.core import NodeCore
from node.core import effects as ef
from node.core import events as ev
from node.draft_port import DraftSink
from node.ports import LinkStats
from plait.clock import Clock, ManualClock, SystemClock
from plait.crypto.authority import CertificateAuthority
from plait.crypto.identity import NodeIdentity, new_ed25519
from plait.crypto.tickets import TicketSigner
from plait.crypto.tokens import new_join_token
from plait.errors import ConfigError, UnavailableError
from plait.types import (
    DraftState,
    LayerSpan,
    ModelId,
    ModelSource,
    ModelSpec,
    NodeId,
    Reason,
    RequestId,
)
from plait.wire.v1 import common_pb2, control_pb2
from tests.interaction.test_node_mtls import Papers as Issued
from tests.unit.node.control_kit import NoGateway, NoLinks
from tests.unit.node.fake_engine import FakeEngineHost
from tests.unit.node.ring import Told, until
from tests.unit.node.story import SOURCE, SPEC, A, B, assign, opened


def credentials(home: Path, authority: CertificateAuthority) -> NodeCredentials:
    """An enrolled node's, saved."""
    issued = Issued(authority)
    identity = NodeIdentity.generate()
    issued.node_id = identity.node_id
    issued.renew()
    made = NodeCredentials(
        home=home,
        identity=identity,
        display_name="one",
        network_id=authority.network_id,
        tls=issued.tls,
        ca_pem=authority.certificate_pem,
        ticket_key=TicketSigner(new_ed25519()).public_bytes,
        coordinator_address="old.example:7420",
        node_address="old.example:7421",
    )
    made.save()
    return made


async def test_a_certificate_is_renewed_at_two_thirds_of_its_life(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(SystemClock())
    old = credentials(tmp_path, authority)
    new = replace(old, display_name="renewed")
    clock = ManualClock(unix_ms=old.renew_at_unix_ms - 1)
    answers: list[Exception | NodeCredentials] = [UnavailableError("away"), new]

    async def renew(_given: NodeCredentials, _clock: Clock, _open: object) -> NodeCredentials:
        answer = answers.pop(0) if answers else new
        if isinstance(answer, Exception):
            raise answer
        return answer

    papers = Papers(
        old,
        clock,
        lambda: aio.insecure_channel("127.0.0.1:1"),
        renew_call=renew,
        check_s=0.001,
    )
    task = asyncio.create_task(papers.run())
    await asyncio.sleep(0.01)
    assert len(answers) == 2, "too early"
    clock.advance(1)
    await until(lambda: not answers, what="a failure is tried again")
    assert papers.credentials is new
    task.cancel()


async def test_papers_that_are_there_need_no_token_and_spend_none(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(SystemClock())
    old = credentials(tmp_path, authority)
    again = await join(NodeConfig(home=tmp_path))
    assert again.node_id == old.node_id
    token = new_join_token(ca_der=authority.certificate_der, address="127.0.0.1:1").encode()
    assert (await join(NodeConfig(home=tmp_path, token=token))).node_id == old.node_id


async def test_a_coordinator_that_moved_is_dialled_where_it_is_now(tmp_path: Path) -> None:
    credentials(tmp_path, CertificateAuthority.create(SystemClock()))
    same = await join(NodeConfig(home=tmp_path, coordinator="old.example:7420"))
    assert same.node_address == "old.example:7421"
    moved = await join(NodeConfig(home=tmp_path, coordinator="new.example"))
    assert moved.node_address == "new.example:7421"


async def test_without_papers_and_token_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="plait token create"):
        await join(NodeConfig(home=tmp_path))


@pytest.mark.parametrize(
    ("listen", "advertise", "expected"),
    [
        ("0.0.0.0:0", (), (":9",)),
        ("[::]:0", (), (":9",)),
        ("127.0.0.1:0", (), ("127.0.0.1:9",)),
        ("0.0.0.0:0", ("attic", "[fe80::1]:7"), ("attic:9", "[fe80::1]:7")),
    ],
)
def test_where_neighbours_may_dial(
    listen: str, advertise: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    config = NodeConfig(home=Path(), listen=listen, advertise=advertise)
    assert own_addresses(config, 9) == expected


class TwoLinks(NoLinks):
    """Figures of two neighbours."""

    def stats(self) -> tuple[LinkStats, ...]:
        near = LinkStats(
            neighbour_id=NodeId("near"),
            sent_frames=1,
            sent_bytes=100,
            received_frames=1,
            received_bytes=10,
            sequence_errors=2,
            rtt_ms=1.5,
            is_up=True,
        )
        return near, replace(near, neighbour_id=NodeId("far"), rtt_ms=None)


async def test_figures_add_up_over_links() -> None:
    meter = NodeMeter(NodeCore(NodeId("n"), 1), FakeEngineHost(), TwoLinks())
    assert (meter.load().sent_bytes_total, meter.load().frames_dropped_total) == (200, 4)
    reading = meter.reading()
    assert reading.neighbour_rtt_ms == (("near", 1.5),)
    assert (reading.state, reading.received_bytes_total) == ("joining", 20)


class Drafts:
    """A draft model that knows one vocabulary: that of models called "tiny"."""

    model_id, num_failed = "smallest", 3

    def start(self, sink: DraftSink) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def check(self, spec: ModelSpec, source: ModelSource) -> Reason | None:
        other = Reason(code="draft_vocabulary_differs", message="other words")
        return None if spec.model_id == "tiny" else other

    def order(self, order: ef.Draft) -> None:
        pass

    def close(self, request_id: RequestId, epoch: int) -> None:
        pass


@pytest.mark.parametrize(
    ("model_id", "span", "expected", "words"),
    [
        ("tiny", LayerSpan(0, 3), DraftState.GUESSING, "smallest: guesses, 3 steps failed"),
        ("tiny", LayerSpan(1, 3), DraftState.IDLE, "smallest: rests"),
        ("other", LayerSpan(0, 3), DraftState.REFUSED, "smallest: refused: other words"),
    ],
)
async def test_what_the_draft_model_does_is_told(
    model_id: str, span: LayerSpan, expected: DraftState, words: str
) -> None:
    core, engine, drafts = NodeCore(NodeId("n"), 1), FakeEngineHost(), Drafts()
    runtime = NodeRuntime(core, engine, SystemClock(), drafter=drafts)
    told = Told()
    runtime.connect(links=NoLinks(), gateway=NoGateway(), reporter=told, leaver=told)
    task = asyncio.create_task(runtime.run())
    offer = ev.ModelOffered(replace(SPEC, model_id=ModelId(model_id)), SOURCE)
    runtime.post(ev.ControlAttached(models=(offer,), frame_bytes_max=4 << 20))
    runtime.post(replace(assign(span), model_id=ModelId(model_id)))
    await until(lambda: bool(told.reports))
    meter = NodeMeter(core, engine, NoLinks(), drafter=drafts)
    draft = meter.load().draft
    assert draft is not None and draft.state is expected
    assert meter.figures(sent_bytes=0, received_bytes=0).draft.startswith(words)
    task.cancel()


def test_rows_travel_half_a_round_trip_to_each_side() -> None:
    link = TwoLinks().stats()[0]
    links = [
        replace(link, neighbour_id=name, rtt_ms=rtt_ms) for name, rtt_ms in ((A, 4.0), (B, None))
    ]
    assert [travel_ms(opened(index), links) for index in range(3)] == [0.0, 2.0, 2.0]
    assert travel_ms(opened(0, names=(A,)), []) == 0.0


async def test_a_bug_in_loading_is_reported_and_the_node_lives() -> None:
    engine = FakeEngineHost(load_error=ZeroDivisionError("a bug"))
    runtime = NodeRuntime(NodeCore(NodeId("n"), 1), engine, SystemClock())
    told = Told()
    runtime.connect(links=NoLinks(), gateway=NoGateway(), reporter=told, leaver=told)
    task = asyncio.create_task(runtime.run())
    runtime.post(
        ev.ControlAttached(models=(ev.ModelOffered(SPEC, SOURCE),), frame_bytes_max=4 << 20)
    )
    runtime.post(assign(LayerSpan(0, 3)))
    await until(lambda: bool(told.reports))
    (failed,) = told.reports
    assert isinstance(failed, ef.ReportLoadFailed)
    assert failed.reason.code == "load_crashed"
    assert not task.done()
    task.cancel()


def test_an_owner_who_asked_for_other_numbers_hears_what_to_type() -> None:
    offer = control_pb2.ModelOffer(
        spec=common_pb2.ModelSpec(model_id="m", weight_format="fp16"),
    )
    welcome = control_pb2.Welcome(models=[offer])
    assert weights_refusal(welcome, "auto") is None
    assert weights_refusal(welcome, "fp16") is None
    refusal = weights_refusal(welcome, "fp32")
    assert refusal is not None and refusal.code == "weights_refused"
    assert "join with --weights auto" in refusal.message
