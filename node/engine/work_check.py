"""Whether what came from outside fits the model and its sequence. Raises FrameError where not."""

from node.engine.sequence import Sequence
from node.ports import SequenceOpen, StageWork
from plait.errors import FrameError
from plait.types import DRAFTS_MAX, ModelSpec


def check_opened(opened: SequenceOpen, spec: ModelSpec) -> None:
    """No request may ask for no slots, for more than the context, or for unknown tokens."""
    if not 0 < opened.kv_tokens <= spec.context_tokens_max:
        raise FrameError(
            f"{opened.kv_tokens} KV slots: the context has {spec.context_tokens_max}",
            reason="kv_tokens_invalid",
        )
    if opened.sampling is None:
        return
    biased = [token for token, _ in opened.sampling.logit_bias]
    named = (opened.penalty_prompt_ids, opened.penalty_generated_ids, biased)
    if not all(0 <= token < spec.vocab_size for ids in named for token in ids):
        raise FrameError("a penalty or a bias names a token outside the vocabulary")


def check_work(work: StageWork, sequence: Sequence, spec: ModelSpec) -> None:
    """A work must start where the last one ended or where its guesses began, within the slots, with
    rows of the right shape."""
    opened = sequence.opened
    back = sequence.next_position - work.position
    if work.num_tokens < 1 or not 0 <= back <= sequence.num_drafted:
        raise FrameError(
            f"{work.num_tokens} rows at position {work.position} of {work.request_id}: "
            f"position {sequence.next_position} comes next",
            reason="position_invalid",
        )
    if work.position + work.num_tokens > opened.kv_tokens:
        raise FrameError(
            f"{work.request_id} reserved {opened.kv_tokens} KV slots and sends more",
            reason="position_invalid",
        )
    if work.drafted_ids:
        _check_drafts(work, spec)
    if opened.span.start == 0:
        _check_ids(work, spec)
    else:
        _check_hidden(work, spec)
    if work.sample and opened.span.end == spec.num_layers and opened.sampling is None:
        raise FrameError("a token was asked of a sequence without sampling parameters")


def _check_ids(work: StageWork, spec: ModelSpec) -> None:
    ids = work.token_ids
    if ids is None or len(ids) != work.num_tokens:
        raise FrameError("a first stage takes one token id for each row", reason="shape_invalid")
    if min(ids) < 0 or max(ids) >= spec.vocab_size:
        raise FrameError(
            f"a token id is outside the vocabulary of {spec.vocab_size}", reason="token_invalid"
        )


def _check_drafts(work: StageWork, spec: ModelSpec) -> None:
    is_fit = work.sample and work.is_decode and len(work.drafted_ids) <= DRAFTS_MAX
    if not is_fit or max(work.drafted_ids) >= spec.vocab_size:
        raise FrameError(
            f"{len(work.drafted_ids)} guesses among {work.num_tokens} rows", reason="drafts_invalid"
        )


def _check_hidden(work: StageWork, spec: ModelSpec) -> None:
    expected = work.num_tokens * work.dtype.row_bytes(spec.hidden_size)
    hidden_bytes = 0 if work.hidden is None else memoryview(work.hidden).nbytes
    if work.token_ids is not None or hidden_bytes != expected:
        raise FrameError(
            f"{hidden_bytes} bytes of hidden states, {expected} expected", reason="shape_invalid"
        )
