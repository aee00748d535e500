"""Transactions of the store, with errors that callers can act on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from plait.errors import InvalidRequestError, UnavailableError

NAME_CHARS_MAX: Final = 128


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """All or nothing. Raises UnavailableError where the database does not do it."""
    try:
        async with engine.begin() as connection:
            yield connection
    except (SQLAlchemyError, OSError) as error:
        cause = getattr(error, "orig", None) or error
        raise UnavailableError(
            f"the coordinator's store failed ({type(cause).__name__}): check its disk or database",
            reason="store_unavailable",
        ) from error


def display_name(text: str) -> str:
    """A name for people, without surrounding blanks and control characters.

    Raises InvalidRequestError where it is longer than NAME_CHARS_MAX.
    """
    name = "".join(char for char in text if char.isprintable()).strip()
    if len(name) > NAME_CHARS_MAX:
        raise InvalidRequestError(
            f"the name is longer than {NAME_CHARS_MAX} characters", param="display_name"
        )
    return name
