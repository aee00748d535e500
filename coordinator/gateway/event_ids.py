"""Event ids of a stream, and `Last-Event-ID`: an OpenAI client may go on where its stream broke.

An id is `REQUEST:PIECES`: the request's name, and how many pieces of the answer came up to there;
of a stream that was gone on with, `REQUEST:PIECES:EPOCH`, what to come back with.
Only streams of one choice have them.
"""

import dataclasses
import re
from typing import Final

from coordinator.gateway.reader import Resume
from coordinator.gateway.schema import CompletionOrder
from plait.errors import InvalidRequestError

_ID: Final = re.compile(r"([A-Za-z0-9_-]{1,32}):(\d{1,9})(?::(\d{1,7}))?\Z")


def named(order: CompletionOrder, header: str | None, fresh_id: str) -> tuple[CompletionOrder, str]:
    """`order` under the name in `header` (the value of Last-Event-ID), else under `fresh_id`, and
    that name. Raises InvalidRequestError for an id that is none of ours."""
    if len(order.orders) != 1 or not order.is_stream:
        if header:
            raise InvalidRequestError(
                "Last-Event-ID goes with a stream of one choice", param="Last-Event-ID"
            )
        return order, fresh_id
    request_id, resume = fresh_id, None
    if header:
        match = _ID.match(header)
        if match is None:
            raise InvalidRequestError(
                "Last-Event-ID must be the id of an event of the lost stream",
                param="Last-Event-ID",
            )
        request_id = match[1]
        resume = Resume(epoch=int(match[3] or 0), num_deltas=int(match[2]))
    only = dataclasses.replace(order.orders[0], request_id=request_id, resume=resume)
    return dataclasses.replace(order, orders=(only,)), request_id


def event_id(request_id: str, num_pieces: int, resume: Resume | None) -> bytes:
    """The line that names an event of a stream, which goes on with `resume`."""
    epoch = "" if resume is None else f":{resume.next_epoch}"
    return f"id: {request_id}:{num_pieces}{epoch}\n".encode()
