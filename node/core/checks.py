"""Whether a frame agrees with its session, and whether a token is the last one."""

from node.core.machines import SessionState
from node.core.messages import Activations, StatusCode, Token
from node.core.state import Session
from plait.prefixes import BLOCK_TOKENS, NAME_BYTES
from plait.types import PREEMPTED, FinishReason, Reason


def rows_problem(session: Session, rows: Activations) -> Reason | None:
    """Why these rows contradict the session, or None; older rows are the caller's to drop."""
    if session.state is not SessionState.OPEN:
        return Reason(code="frame_early", message="rows came before the stage was open")
    if rows.position > session.next_position:
        return Reason(
            code="frame_gap",
            message=f"rows from {session.next_position} on are missing: {rows.position} came",
        )
    if session.is_guessing:
        return Reason(code="frame_early", message="rows came before the guesses in front had run")
    if rows.drafted_ids and not _are_guesses(session, rows):
        return Reason(
            code="frame_drafts",
            message=f"{len(rows.drafted_ids)} guesses among {rows.num_tokens} rows will not do",
        )
    wire_dtype = session.open.arriving_dtype
    if rows.dtype not in (None, wire_dtype):
        return Reason(
            code="frame_dtype", message=f"rows are {rows.dtype}, the ticket says {wire_dtype}"
        )
    if rows.num_tokens < 1 or len(rows.payload) != rows.num_tokens * session.row_bytes:
        return Reason(
            code="frame_shape",
            message=(
                f"{rows.num_tokens} rows of {session.row_bytes} bytes were announced, "
                f"{len(rows.payload)} bytes came"
            ),
        )
    if rows.block_name is not None and not _completes_a_block(session, rows):
        return Reason(code="frame_shape", message="rows that complete no block came with its name")
    if rows.position + rows.num_tokens > session.position_limit:
        return Reason(
            code="frame_position",
            message=f"rows end beyond the request's {session.position_limit} slots",
        )
    return None


def _completes_a_block(session: Session, rows: Activations) -> bool:
    """Or its end was a guess when it ran, and is none now."""
    end = rows.position + rows.num_tokens - len(rows.drafted_ids)
    is_near = end % BLOCK_TOKENS <= session.drafts_max and end >= BLOCK_TOKENS
    return is_near and len(rows.block_name or b"") == NAME_BYTES


def _are_guesses(session: Session, rows: Activations) -> bool:
    num_drafted = len(rows.drafted_ids)
    is_fit = num_drafted <= session.drafts_max and rows.num_tokens == 1 + num_drafted
    return rows.sample and is_fit and max(rows.drafted_ids) < session.vocab_size


def engine_error_code(error: Reason) -> StatusCode:
    """What the gateway hears of a request that the engine gave up."""
    return StatusCode.ABORTED if error.code == PREEMPTED else StatusCode.INTERNAL


def token_problem(session: Session, token: Token) -> Reason | None:
    """Why this ring token cannot be the first stage's next row, or None."""
    if token.position > session.next_position:
        return Reason(code="frame_gap", message=f"no token for {session.next_position} came")
    if session.is_guessing:
        return Reason(code="frame_early", message="a token came before its rows had run")
    if token.position >= session.position_limit:
        return Reason(code="frame_position", message="a token beyond the request's slots")
    if token.token_id >= session.vocab_size:
        return Reason(code="token_id_invalid", message="a token outside the vocabulary")
    return None


def finish_reason(session: Session, token_id: int, position: int) -> FinishReason | None:
    """Whether the token just drawn, at `position`, ends the generation, and why."""
    if token_id in session.open.stop_token_ids:
        return FinishReason.STOP
    is_full = session.num_generated >= session.open.max_new_tokens
    return FinishReason.LENGTH if is_full or position >= session.position_limit else None
