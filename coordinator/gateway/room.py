"""How long an answer may become beside its prompt."""

from coordinator.gateway.order import Conversation, Order
from plait.errors import InvalidRequestError
from plait.types import ModelSpec


def max_new_tokens(order: Order, spec: ModelSpec, prompt_tokens: int, *, default: int) -> int:
    """What the answer may have: as asked, or `default`, as far as the context allows.

    Raises InvalidRequestError for an empty prompt, and where less fits than is asked for.
    """
    param = "messages" if isinstance(order.prompt, Conversation) else "prompt"
    if prompt_tokens == 0:
        raise InvalidRequestError("the prompt has no tokens", param=param)
    room = spec.context_tokens_max - prompt_tokens
    if room < 1:
        raise InvalidRequestError(
            f"the prompt has {prompt_tokens} tokens and leaves no room for an answer: the "
            f"context of {spec.model_id} is {spec.context_tokens_max} tokens",
            param=param,
            reason="context_length_exceeded",
        )
    if order.max_tokens is None:
        return min(default, room)
    if order.max_tokens > room:
        raise InvalidRequestError(
            f"max_tokens is {order.max_tokens}, but after a prompt of {prompt_tokens} tokens "
            f"the context of {spec.context_tokens_max} has room for {room}",
            param="max_tokens",
            reason="context_length_exceeded",
        )
    return order.max_tokens
