"""The draft model that a node's settings ask for."""

import asyncio

from node.config import NodeConfig
from node.draft_port import DraftHost
from node.engine.device import Device
from node.engine.drafting import Drafter
from node.engine.drafting_model import load_draft_model
from node.engine.held import OpenSource
from node.ports import NodePhase, Progress, ProgressSink


async def open_drafter(
    config: NodeConfig,
    device: Device,
    open_source: OpenSource,
    memory_bytes: int | None,
    progress: ProgressSink,
) -> tuple[DraftHost | None, int | None]:
    """The draft model, loaded and not started, and what it leaves of `memory_bytes` for layers: so
    the node offers no memory that guesses need. Raises PlaitError where it will not do."""
    name = config.draft_model or config.owner.limits.draft_model
    if not name or config.drafts_max == 0:
        return None, memory_bytes
    progress(Progress(phase=NodePhase.LOADING, detail=f"draft model {name}"))
    model = await asyncio.to_thread(
        load_draft_model,
        name,
        device,
        open_source,
        memory_bytes=memory_bytes,
        kv_tokens_max=config.kv_tokens_max,
    )
    left = None if memory_bytes is None else max(0, memory_bytes - model.memory_bytes)
    return Drafter(model, num_threads=config.num_threads), left
