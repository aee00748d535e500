"""Rows of a request into the engine, and from it to the next stage."""

from collections.abc import Sequence
from typing import Final

from node.core.effects import Effect, Send, SubmitRows
from node.core.events import RowOutcome
from node.core.messages import Activations
from node.core.state import NodeData, Session
from plait.types import Reason

NOTHING_CAME: Final = Reason(code="engine_failed", message="a step returned no hidden states")


def prefill(node: NodeData, session: Session, out: list[Effect]) -> None:
    """All chunks at once: while this stage runs one, the next stage runs the one before."""
    prompt = session.prompt_token_ids
    chunk = rows_of_a_frame(node, session.row_bytes_max)
    for start in range(session.next_position, len(prompt), chunk):
        ids = prompt[start : start + chunk]
        is_end = start + len(ids) == len(prompt)
        submit(session, start, len(ids), out, token_ids=ids, sample=is_end)


def submit(
    session: Session,
    position: int,
    num_tokens: int,
    out: list[Effect],
    *,
    sample: bool,
    token_ids: Sequence[int] | None = None,
    hidden: bytes | None = None,
    block_name: bytes | None = None,
    drafted_ids: tuple[int, ...] = (),
) -> None:
    """Have the engine run the session's next rows; they take the place of guesses before them."""
    session.sent_position = min(session.sent_position, position)
    session.next_position = position + num_tokens
    session.drafted_ids = drafted_ids
    if block_name is not None and session.next_id is not None:
        session.block_names[session.next_position] = block_name
    out.append(
        SubmitRows(
            session.request_id,
            session.epoch,
            position,
            num_tokens,
            dtype=session.open.arriving_dtype,
            sample=sample,
            token_ids=token_ids,
            hidden=hidden,
            block_name=block_name,
            drafted_ids=drafted_ids,
        )
    )


def send_on(
    node: NodeData, session: Session, outcome: RowOutcome, hidden: bytes, out: list[Effect]
) -> None:
    """What the engine made of rows goes to the next stage. A step may have run several chunks as
    one: they leave in frames that are not larger than the network's, and that the next stage can
    begin with one by one."""
    assert session.next_id is not None, "the last stage has no next one"
    num_tokens = outcome.num_tokens
    row_bytes = len(hidden) // num_tokens
    is_newest = session.sent_position == session.next_position
    drafted_ids = session.drafted_ids if is_newest else ()
    chunk = num_tokens if drafted_ids else rows_of_a_frame(node, row_bytes)
    for start in range(0, num_tokens, chunk):
        end = min(num_tokens, start + chunk)
        is_end = end == num_tokens
        rows = Activations(
            session.request_id,
            session.epoch,
            outcome.position + start,
            end - start,
            hidden if end - start == num_tokens else hidden[start * row_bytes : end * row_bytes],
            sample=outcome.sample and is_end,
            block_name=session.block_names.pop(session.sent_position, None) if is_end else None,
            drafted_ids=drafted_ids,
        )
        out.append(Send(session.next_id, rows))


def rows_of_a_frame(node: NodeData, row_bytes: int) -> int:
    """Rows of a prompt, or a row and its guesses, that go in one frame."""
    limits = node.limits
    frame_bytes = node.frame_bytes_max - limits.frame_overhead_bytes
    return max(1, min(limits.prefill_chunk_tokens, frame_bytes // max(1, row_bytes)))
