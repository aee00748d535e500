"""A token as a last stage sends it: checked before anything is made of it."""

import math
from typing import Final

from coordinator.gateway.generation import Generation
from coordinator.gateway.happenings import GeneratedToken
from plait.errors import FrameError
from plait.types import DRAFTS_MAX, TokenLogprob
from plait.wire.v1 import data_pb2

TOP_LOGPROBS_MAX: Final = 20


def read_token(message: data_pb2.SampledToken, generation: Generation) -> GeneratedToken:
    """Raises FrameError for ids outside the vocabulary and what is not a number."""
    vocab_size = generation.vocab_size
    top = tuple(
        TokenLogprob(entry.token_id, entry.logprob)
        for entry in message.top_logprobs[:TOP_LOGPROBS_MAX]
    )
    logprob = message.logprob if message.HasField("logprob") else None
    values = [entry.logprob for entry in top] + ([] if logprob is None else [logprob])
    if any(math.isnan(value) for value in values):
        raise FrameError("a log probability that is not a number")
    for token_id in (message.token_id, *(entry.token_id for entry in top)):
        if token_id >= vocab_size:
            raise FrameError(f"token {token_id} of a vocabulary of {vocab_size}")
    return GeneratedToken(
        token_id=message.token_id,
        logprob=logprob,
        top_logprobs=top,
        is_stop=message.token_id in generation.stop_token_ids,
        is_guess=message.is_guess,
        num_guesses=min(message.num_guesses, DRAFTS_MAX),
    )
