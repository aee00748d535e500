"""A core and its clock, to tell stories with: given these events, these effects."""

from random import Random
from typing import TypeVar

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.core import Core
from coordinator.core.invariants import check
from coordinator.core.state import Limits
from plait.types import (
    CachedSpan,
    DType,
    FinishReason,
    HeldSpan,
    ModelId,
    ModelSpec,
    NodeId,
    NodeLoad,
    NodeProfile,
    Reason,
    RequestId,
)
from scheduler.allocation import allocate_greedy
from scheduler.allocation.remedy import shortages
from scheduler.selection.fairness import SloClass
from tests.unit.scheduler.pools import node as profile_of
from tests.unit.scheduler.pools import tiny_model

E = TypeVar("E")
STILL_MAX = 1_000
"""Wakings in a row at one and the same time."""
IDLE = NodeLoad(
    kv_tokens_reserved=0,
    num_requests=0,
    stage_ms=0.0,
    tokens_total=0,
    sent_bytes_total=0,
    frames_dropped_total=0,
    queue_tokens=0,
)


class Story:
    """Feeds a core and keeps what it asked for."""

    def __init__(
        self,
        limits: Limits | None = None,
        models: tuple[ModelSpec, ...] = (),
        *,
        wire_dtype: DType | None = DType.FLOAT32,
    ) -> None:
        self.core = Core(
            models if models else (tiny_model(),),
            limits if limits is not None else Limits(kv_tokens_min=1024),
            Random(1),
            network_id="test",
            wire_dtype=wire_dtype,
        )
        self.now_ms = 1_000
        self.effects: list[fx.Effect] = []

    def tell(self, *events: ev.Event) -> list[fx.Effect]:
        """Hand in events now; returns all they caused."""
        caused: list[fx.Effect] = []
        for event in events:
            caused += self.core.handle(event, self.now_ms)
            check(self.core.state)
        self.effects += caused
        return caused

    def wait(self, delta_ms: int, *, beating: tuple[str, ...] = ()) -> list[fx.Effect]:
        """Let time pass, with heartbeats of `beating` nodes every second."""
        caused: list[fx.Effect] = []
        until_ms = self.now_ms + delta_ms
        num_still = 0
        while self.now_ms < until_ms:
            due_ms = self.core.next_deadline_ms()
            step_ms = min(until_ms, self.now_ms + 1_000)
            if due_ms is not None:
                step_ms = min(step_ms, max(due_ms, self.now_ms))
            num_still = num_still + 1 if step_ms == self.now_ms else 0
            assert num_still < STILL_MAX, "time stands still: a deadline that is past is never met"
            self.now_ms = step_ms
            caused += self.tell(ev.Ticked())
            for name in beating:
                known = self.core.state.nodes.get(NodeId(name))
                if known is not None:
                    caused += self.tell(self.beat(name, known.incarnation))
        return caused

    @staticmethod
    def beat(name: str, incarnation: int = 1) -> ev.NodeReported:
        return ev.NodeReported(node_id=NodeId(name), incarnation=incarnation, load=IDLE)

    def join(
        self,
        name: str,
        *,
        incarnation: int = 1,
        memory_mib: float = 300,
        held: HeldSpan | None = None,
        profile: NodeProfile | None = None,
        reuses_prefixes: bool = False,
        cached: tuple[CachedSpan, ...] = (),
    ) -> list[fx.Effect]:
        """Attach, link to the gateway, profile."""
        node_id = NodeId(name)
        own = profile if profile is not None else profile_of(name, memory_mib=memory_mib)
        return self.tell(
            ev.NodeAttached(
                node_id=node_id,
                incarnation=incarnation,
                display_name=name,
                addresses=(f"{name}:1",),
                held=held,
                reuses_prefixes=reuses_prefixes,
                cached=cached,
            ),
            ev.GatewayLinkChanged(node_id=node_id, incarnation=incarnation, is_up=True),
            ev.NodeProfiled(profile=own, incarnation=incarnation),
        )

    def solve(self, effect: fx.SolveAllocation) -> list[fx.Effect]:
        """Answer as the shell would."""
        try:
            plan = allocate_greedy(effect.problem)
        except Exception as error:
            code = getattr(error, "code", "internal")
            reason = Reason(code=code, message=str(error))
            lacking = shortages(effect.problem, None)
            return self.tell(
                ev.AllocationSolved(
                    epoch=effect.epoch, allocation=None, reason=reason, shortages=lacking
                )
            )
        lacking = shortages(effect.problem, plan)
        return self.tell(
            ev.AllocationSolved(epoch=effect.epoch, allocation=plan, shortages=lacking)
        )

    def load(self, effect: fx.AssignSpan, *, kv_tokens: int = 4096) -> list[fx.Effect]:
        """The node loads what it was assigned."""
        return self.tell(loaded_event(effect, kv_tokens))

    def start(self, *names: str, memory_mib: float = 300) -> None:
        """Nodes join, are planned, load and serve."""
        for name in names:
            self.join(name, memory_mib=memory_mib)
        self.settle(beating=names)

    def settle(self, *, beating: tuple[str, ...] = (), rounds: int = 4) -> None:
        """Play shell and nodes until nothing is left to solve or load."""
        for _ in range(rounds):
            for solve in only(self.wait(600, beating=beating), fx.SolveAllocation):
                for assign in only(self.solve(solve), fx.AssignSpan):
                    self.load(assign)

    def submit(
        self,
        name: str,
        *,
        prompt: int = 10,
        new: int = 20,
        model: str = "tiny",
        key: str = "k",
        slo: SloClass = SloClass.INTERACTIVE,
        prefix_blocks: tuple[int, ...] = (),
    ) -> list[fx.Effect]:
        """A client asks."""
        return self.tell(
            ev.RequestSubmitted(
                request_id=RequestId(name),
                model_id=ModelId(model),
                prompt_tokens=prompt,
                max_new_tokens=new,
                key_id=key,
                slo=slo,
                prefix_blocks=prefix_blocks,
            )
        )

    def finish(self, name: str, epoch: int = 1, *, num: int = 20) -> list[fx.Effect]:
        """Opened, first token, last token."""
        request_id = RequestId(name)
        return self.tell(
            ev.RouteOpened(request_id=request_id, epoch=epoch),
            ev.FirstTokenSent(request_id=request_id, epoch=epoch),
            ev.LastTokenSent(
                request_id=request_id,
                epoch=epoch,
                finish_reason=FinishReason.LENGTH,
                num_generated=num,
            ),
        )


def loaded_event(effect: fx.AssignSpan, kv_tokens: int = 4096) -> ev.NodeLoaded:
    """What a node says when it has loaded what `effect` asks for."""
    return ev.NodeLoaded(
        node_id=effect.node_id,
        incarnation=effect.incarnation,
        held=HeldSpan(
            model_id=effect.model_id,
            span=effect.span,
            allocation_epoch=effect.epoch,
            digest="d" * 64,
            weight_bytes=1,
            read_bytes=1,
            kv_tokens_max=kv_tokens,
        ),
    )


def only(effects: list[fx.Effect], kind: type[E]) -> list[E]:
    """Those of one kind, in order."""
    return [effect for effect in effects if isinstance(effect, kind)]
