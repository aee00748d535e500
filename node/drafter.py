"""The draft model that a node's settings ask for, or why there is none."""

import asyncio
from dataclasses import dataclass

from node.config import NodeConfig
from node.core.effects import Draft
from node.core.events import DraftModelChanged
from node.draft_port import DraftHost, DraftSink
from node.engine.device import Device
from node.engine.drafting import Drafter
from node.engine.drafting_model import load_draft_model
from node.engine.held import OpenSource
from node.ports import NodePhase, Progress, ProgressSink
from plait import log
from plait.errors import OverloadedError
from plait.types import DraftState, ModelSource, ModelSpec, Reason, RequestId

_log = log.get("drafting")


@dataclass(frozen=True, slots=True)
class RefusedDrafts:
    """A `DraftHost` for a model that is not there: it says why, and guesses nothing."""

    model_id: str
    why: str
    num_failed: int = 0

    def start(self, sink: DraftSink) -> None:
        sink(DraftModelChanged(state=DraftState.REFUSED, why=self.why, is_final=True))

    async def stop(self) -> None:
        pass

    async def check(self, spec: ModelSpec, source: ModelSource) -> Reason | None:
        return Reason(code="draft_too_large", message=self.why)

    def order(self, order: Draft) -> None:
        raise AssertionError("nothing is asked of a draft model that was refused")

    def close(self, request_id: RequestId, epoch: int) -> None:
        pass


async def open_drafter(
    config: NodeConfig,
    device: Device,
    open_source: OpenSource,
    memory_bytes: int | None,
    progress: ProgressSink,
) -> tuple[DraftHost | None, int | None]:
    """The draft model, loaded and not started, and what it leaves of `memory_bytes` for layers: so
    the node offers no memory that guesses need. Where it finds no memory itself, the node serves
    without, and says so. Raises PlaitError for one that cannot be read."""
    name = config.draft_model or config.owner.limits.draft_model
    if not name or config.drafts_max == 0:
        return None, memory_bytes
    progress(Progress(phase=NodePhase.LOADING, detail=f"draft model {name}"))
    try:
        model = await asyncio.to_thread(
            load_draft_model,
            name,
            device,
            open_source,
            memory_bytes=memory_bytes,
            kv_tokens_max=config.kv_tokens_max,
        )
    except OverloadedError as error:
        _log.warning("draft_model_refused", reason=error.code, message=error.message)
        return RefusedDrafts(name, error.message), memory_bytes
    left = None if memory_bytes is None else max(0, memory_bytes - model.memory_bytes)
    return Drafter(model, num_threads=config.num_threads), left
