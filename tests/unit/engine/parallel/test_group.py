"""A group over real sockets and gloo, its ranks in threads: forms, computes, refuses, ends."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
import torch

from node.engine.device import Device
from node.engine.held import OpenSource
from node.engine.memory import plan_memory
from node.engine.parallel.channel import RankChannel
from node.engine.parallel.group import RankGroup, require_same_kv
from node.engine.parallel.leading import GroupLoader
from node.engine.parallel.rank import Rank
from node.engine.parallel.split import Split, rank_spec
from node.engine.runner import Runner
from plait.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineError,
    PlaitError,
    UnavailableError,
    WeightsError,
)
from plait.types import DType, HeldSpan, KvDtype, ModelSource, SourceKind
from plait.wire.v1.ranks_pb2 import RankReady
from tests.unit.engine.kit import (
    CPU,
    MemorySource,
    TinyModel,
    ids_item,
    make_runner,
    make_sequence,
    run_rows,
    tiny_model,
)

pytestmark = pytest.mark.slow
SECRET = b"known to both"
WAIT_S = 20.0
MEMORY_BYTES, STEP_TOKENS = 64 << 20, 64
PROMPT = [5, 17, 33, 2, 80, 41, 7]
SOURCE = ModelSource(kind=SourceKind.PATH, name="tiny")


@dataclass
class ThreadRanks:
    """Ranks in threads of this process, with weights of their own."""

    sources: list[OpenSource]
    secret: bytes = SECRET
    errors: list[PlaitError] = field(default_factory=list)
    channels: list[RankChannel] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self, address: str, secret: bytes) -> None:
        host, _, port = address.rpartition(":")
        for open_source in self.sources:
            args = (host, int(port), open_source)
            self.threads.append(threading.Thread(target=self._run, args=args, daemon=True))
            self.threads[-1].start()

    def check(self) -> None:
        return

    def stop(self) -> None:
        for thread in self.threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), "a rank went on after the group's end"

    def _run(self, host: str, port: int, open_source: OpenSource) -> None:
        try:
            connection = socket.create_connection((host, port), WAIT_S)
            channel = RankChannel.join(connection, self.secret)
            self.channels.append(channel)
            Rank(
                channel, CPU, open_source, hostname="127.0.0.1", usable_bytes=lambda: MEMORY_BYTES
            ).run()
        except PlaitError as error:
            self.errors.append(error)


@contextmanager
def formed(*sources: OpenSource, device: Device = CPU) -> Iterator[tuple[RankGroup, ThreadRanks]]:
    """`device` is rank 0's."""
    ranks = ThreadRanks(list(sources))
    group = RankGroup(1 + len(sources), device, ranks, secret=SECRET)
    group.form()
    try:
        yield group, ranks
    finally:
        group.close()


def opens(model: TinyModel, **scaled: float) -> OpenSource:
    """The model's weights, those named in part multiplied."""

    def open_source(_source: ModelSource) -> MemorySource:
        source = model.source()
        for leaf, factor in scaled.items():
            for name, tensor in source.tensors.items():
                if leaf in name:
                    source.tensors[name] = tensor * factor
        return source

    return open_source


def load(
    group: RankGroup,
    model: TinyModel,
    mine: OpenSource | None = None,
    *,
    kv_tokens_max: int = 512,
) -> tuple[Runner, HeldSpan]:
    loader = GroupLoader(
        group,
        mine or opens(model),
        memory_bytes=MEMORY_BYTES,
        kv_tokens_max=kv_tokens_max,
        step_tokens_max=STEP_TOKENS,
    )
    return loader.load(
        model.spec,
        SOURCE,
        model.spec.whole,
        allocation_epoch=1,
        kv_tokens_min=128,
        progress=lambda _phase, _done, _total: None,
    )


@torch.inference_mode()
def logits_of(runner: Runner) -> torch.Tensor:
    item = ids_item(make_sequence(runner.stage.span, runs=((0, 64),)), 0, PROMPT)
    rows = run_rows(runner, [item])[0]
    return runner.stage.logits(rows)


@pytest.mark.parametrize(("kind", "num_ranks"), [("llama", 2), ("mixtral", 4), ("gemma3", 2)])
def test_a_group_over_gloo_gives_one_ranks_logits(kind: str, num_ranks: int) -> None:
    model = tiny_model(kind)
    alone = logits_of(make_runner(model, model.spec.whole))
    with formed(*[opens(model)] * (num_ranks - 1)) as (group, ranks):
        runner, held = load(group, model)
        for _ in range(3):
            torch.testing.assert_close(logits_of(runner), alone, atol=1e-4, rtol=0)
        assert held.layout.endswith(f", {num_ranks} ranks")
        assert held.kv_tokens_max == 512
        runner.close()
    assert ranks.errors == []


def test_ranks_keep_keys_and_values_as_their_node_does() -> None:
    model, int8 = tiny_model("llama"), replace(CPU, kv_dtype=KvDtype.INT8)
    whole, kv_tokens_max = model.spec.whole, 1 << 20
    native, coded = (logits_of(make_runner(model, whole, device=each)) for each in (CPU, int8))
    with formed(opens(model), device=int8) as (group, ranks):
        runner, held = load(group, model, kv_tokens_max=kv_tokens_max)
        found = logits_of(runner)
        runner.close()
    assert ranks.errors == []
    off = (coded - native).abs().max()
    assert (found - coded).abs().max() < 0.2 * off < off < 2 * (found - native).abs().max()
    assert held.layout.endswith(", KV int8, 2 ranks")
    fitting = {
        kv_dtype: plan_memory(
            rank_spec(model.spec, Split(0, 2)),
            whole,
            DType.FLOAT32,
            usable_bytes=MEMORY_BYTES,
            kv_tokens_min=128,
            kv_tokens_max=kv_tokens_max,
            step_tokens_max=STEP_TOKENS,
            packs_weights=True,
            kv_dtype=kv_dtype,
        ).kv_tokens
        for kv_dtype in KvDtype
    }
    assert fitting[KvDtype.NATIVE] < held.kv_tokens_max == fitting[KvDtype.INT8]


def test_a_rank_that_keeps_them_otherwise_is_refused() -> None:
    with pytest.raises(ConfigError, match="as native, rank 0 as int8"):
        require_same_kv(KvDtype.INT8, RankReady())


def test_ranks_with_other_weights_are_refused() -> None:
    model = tiny_model("llama")
    with formed(opens(model, norm=1.5)) as (group, _):
        with pytest.raises(WeightsError, match="different weights") as refused:
            load(group, model)
        assert refused.value.code == "group_weights"
        assert group.lost is None, "the group itself is sound"


def test_a_rank_that_cannot_load_says_why_and_the_group_goes_on() -> None:
    model = tiny_model("llama")
    broken = opens(model, down_proj=float("nan"))
    with formed(broken) as (group, _):
        with pytest.raises(WeightsError, match=r"rank 1: .*down_proj.*NaN"):
            load(group, model)
        with pytest.raises(WeightsError, match="down_proj"):
            load(group, model, broken)
        assert group.lost is None


def test_a_rank_that_goes_away_ends_the_group_at_the_next_step() -> None:
    model = tiny_model("llama")
    heard = threading.Event()
    with formed(opens(model)) as (group, ranks):
        group.on_lost = lambda _why: heard.set()
        runner, _ = load(group, model)
        ranks.channels[0].close()
        assert heard.wait(WAIT_S)
        assert group.lost is not None and "rank 1 of 2 is lost" in group.lost
        with pytest.raises(UnavailableError, match="rank 1"):
            logits_of(runner)
        runner.close()


def test_a_step_that_fails_on_rank_0_ends_the_group_too() -> None:
    model = tiny_model("llama")
    with formed(opens(model)) as (group, _):
        runner, _ = load(group, model)
        item = ids_item(make_sequence(runner.stage.span, runs=((0, 2),)), 0, PROMPT)
        with pytest.raises(AssertionError, match="slots"):
            runner.run([item])
        assert group.lost is not None and "rank 0" in group.lost
        runner.close()


def test_who_does_not_know_the_secret_is_sent_away() -> None:
    ranks = ThreadRanks([opens(tiny_model("llama"))], secret=b"guessed")
    group = RankGroup(2, CPU, ranks, secret=SECRET, join_s=1.0)
    with pytest.raises(DeadlineError, match="0 of 1 other ranks joined"):
        group.form()
    assert isinstance(ranks.errors[0], (AuthenticationError, UnavailableError))
