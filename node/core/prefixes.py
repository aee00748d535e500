"""What of a prompt a chain has already: named by the first stage, agreed on as the stages open.

The first stage sends rows from its own longest prefix on at once. A stage that has less says so;
the word goes back along the chain, every stage on the way forgets what it has beyond, and rows come
again from there. Rows that are still under way from the longer prefix are dropped: their positions
are beyond the one that is due, and no later start is ever above an earlier one.
"""

import hashlib
from dataclasses import replace
from typing import Final

from node.core.effects import Effect, RewindKv, Send
from node.core.messages import PrefixShort, StageOpen
from node.core.state import Session
from plait.prefixes import BLOCK_TOKENS, BlockNamer, reusable_blocks
from plait.types import ModelSpec, Reason

MISSED_LATE: Final = Reason(
    code="prefix_late", message="a stage missed KV of the prompt when all of it had run"
)


def named(session: Session) -> StageOpen:
    """The first stage's Open: its prompt's blocks have names, all that may be reused is asked
    for."""
    opened = session.open
    if not opened.cache_salt:
        return opened
    session.namer = BlockNamer(opened.cache_salt)
    names = session.namer.push(session.prompt_token_ids)
    return replace(
        opened,
        block_names=names,
        cached_blocks=min(len(names), reusable_blocks(opened.prompt_tokens)),
    )


def cache_path(opened: StageOpen, spec: ModelSpec) -> bytes:
    """What this stage's KV depends on besides the tokens: who computed the hidden states before it,
    from which layers, in which dtype they came, and rotations that a sequence's length decides."""
    parts = list(map(str, opened.hop_dtypes[: opened.stage_index] or (opened.wire_dtype,)))
    for stage in opened.stages[: opened.stage_index + 1]:
        parts += [stage.node_id, str(stage.incarnation), str(stage.span)]
    scaling = spec.rope_scaling
    if scaling is not None and scaling.kind == "longrope":
        parts.append(str(opened.kv_tokens > scaling.original_context_tokens))
    return hashlib.sha256("/".join(parts).encode()).digest()[:16]


def agree(session: Session, cached_tokens: int, out: list[Effect]) -> None:
    """The engine has the KV of so many tokens: rows are due from there on."""
    blocks = cached_tokens // BLOCK_TOKENS
    begin(session, cached_tokens)
    if session.previous_id is not None and blocks < session.open.cached_blocks:
        session.awaits_start = True
        short = PrefixShort(session.request_id, session.epoch, blocks)
        out.append(Send(session.previous_id, short))
    session.open = replace(session.open, cached_blocks=blocks)


def begin(session: Session, position: int) -> None:
    """Rows are due, and go on, from here."""
    session.next_position = session.sent_position = position
    session.drafted_ids = ()
    session.start = position


def shorten(session: Session, short: PrefixShort, out: list[Effect]) -> bool:
    """A later stage has less. False where that is not less than what is agreed on."""
    position = short.blocks * BLOCK_TOKENS
    if position >= session.start:
        return False
    begin(session, position)
    session.block_names.clear()
    out.append(RewindKv(session.request_id, session.epoch, position))
    if session.previous_id is not None:
        session.awaits_start = True
        out.append(Send(session.previous_id, short))
    return True
