"""A first stage's next row, and the guesses that go along with it."""

from collections.abc import Sequence
from typing import Final

from node.core import rows
from node.core.drafting import DraftRecord
from node.core.effects import Draft, Effect
from node.core.events import Drafted, DraftModelChanged
from node.core.speculation import AdaptiveLookup
from node.core.state import HeldRow, NodeData, Session
from plait.types import DraftState

WAIT_MS: Final = 2_000
"""A row waits for guesses no longer than this: what takes so long does not pay."""


def begin(node: NodeData, session: Session, prompt: Sequence[int]) -> None:
    """Who guesses the tokens of a request that begins here."""
    session.proposer = lookup = node.proposers.begin(session.open, prompt)
    if node.drafts is not None and isinstance(lookup, AdaptiveLookup):
        session.proposer = session.drafting = node.drafts.begin(prompt, lookup)


def decode(
    node: NodeData, session: Session, drawn: Sequence[int], now_ms: int, out: list[Effect]
) -> None:
    """The token that was drawn last is the first stage's next row, and guesses what comes after it
    may follow; those before it ran as guesses. The prompt has run for good."""
    session.prompt_token_ids = ()
    node.counters.trips += 1
    names = () if session.namer is None else session.namer.push(drawn)
    row = HeldRow(drawn[-1], names[0] if names else None)
    if session.proposer is not None:
        num_right = len(drawn) - 1
        node.counters.drafts_accepted += num_right
        if session.drafting is not None and session.drafting.num_by_model:
            node.counters.drafts_accepted_by_model += num_right
        session.proposer.drew(drawn, now_ms)
    if session.drafting is not None:
        ask = session.drafting.ask(_most(node, session), len(node.sessions), now_ms)
        if ask is not None:
            out.append(
                Draft(
                    request_id=session.request_id,
                    epoch=session.epoch,
                    start=ask.start,
                    token_ids=ask.token_ids,
                    count=ask.count,
                    is_waited=ask.is_waited,
                    kv_tokens=session.position_limit,
                    sampling=session.open.sampling,
                )
            )
            if ask.is_waited:
                session.held_row = row
                return
    _submit(node, session, row, now_ms, out)


def drafted(
    node: NodeData, session: Session, event: Drafted, now_ms: int, out: list[Effect]
) -> None:
    """The draft model has answered: the row that waits for it goes."""
    if session.drafting is not None:
        session.drafting.heard(event.token_ids, event.step_ms, now_ms)
    row, session.held_row = session.held_row, None
    if row is not None:
        _submit(node, session, row, now_ms, out)


def draft_model_changed(
    node: NodeData, event: DraftModelChanged, now_ms: int, out: list[Effect]
) -> None:
    """It guesses for what is held, or rows go on without it: what was asked for does not come."""
    if node.is_draft_final:
        return
    node.is_draft_final = event.is_final
    node.draft_state, node.draft_why = event.state, event.why
    node.drafts = DraftRecord() if event.state is DraftState.GUESSING else None
    if node.drafts is None:
        for session in node.sessions.values():
            _give_up(node, session, now_ms, out)


def go_on_without_late_guesses(node: NodeData, now_ms: int, out: list[Effect]) -> None:
    """A draft model that does not answer holds no row up for longer than WAIT_MS."""
    for session in node.sessions.values():
        drafting = session.drafting if session.held_row is not None else None
        if drafting is not None and drafting.waited_ms(now_ms) >= WAIT_MS:
            _give_up(node, session, now_ms, out)


def _give_up(node: NodeData, session: Session, now_ms: int, out: list[Effect]) -> None:
    drafted(node, session, Drafted(session.request_id, session.epoch, ()), now_ms, out)


def _submit(node: NodeData, session: Session, row: HeldRow, now_ms: int, out: list[Effect]) -> None:
    guesses: tuple[int, ...] = ()
    if session.proposer is not None:
        guesses = session.proposer.propose(_most(node, session), len(node.sessions), now_ms)
        node.counters.tokens_drafted += len(guesses)
    if session.drafting is not None:
        node.counters.tokens_drafted_by_model += session.drafting.num_by_model
    rows.submit(
        session,
        session.next_position,
        1 + len(guesses),
        out,
        token_ids=(row.token_id, *guesses),
        sample=True,
        block_name=row.block_name,
        drafted_ids=guesses,
    )


def _most(node: NodeData, session: Session) -> int:
    """Guesses that may go along. None beyond the last token that may be drawn: so they need no
    slots but those that the request has anyway."""
    position, opened = session.next_position, session.open
    most = min(
        session.drafts_max,
        opened.prompt_tokens + opened.max_new_tokens - position - 2,
        session.position_limit - position - 1,
        rows.rows_of_a_frame(node, session.row_bytes_max) - 1,
    )
    return max(0, most)
