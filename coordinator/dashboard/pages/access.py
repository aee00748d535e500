"""Enrolment tokens and API keys: made, listed, revoked; secrets shown once."""

from collections.abc import Mapping
from typing import Final

from fastapi import Request

from coordinator.dashboard import access
from coordinator.dashboard.frame import Frame
from coordinator.dashboard.live import Action
from coordinator.dashboard.markup import page_head
from coordinator.dashboard.paging import wanted_of
from coordinator.dashboard.sources import Sources
from coordinator.ports import KeyLimits
from plait import log
from plait.errors import InvalidRequestError

VALID_S: Final = {str(valid_s): valid_s for valid_s, _ in access.VALIDITIES}
NAME_CHARS_MAX: Final = 64
DAY_MS: Final = 86_400_000
COUNT_MAX: Final = 1_000_000_000

_log = log.get("dashboard")


async def enrolment_page(sources: Sources, request: Request) -> None:
    """Create, list and revoke enrolment tokens."""
    frame = Frame(sources, request, at="enrolment")
    wanted = wanted_of("enrolment", request.query_params, ())

    async def do(action: Action) -> None:
        match action.name:
            case "create-token":
                valid_s = VALID_S.get(action.fields.get("valid_s", ""), 86_400)
                name = action.fields.get("display_name", "")[:NAME_CHARS_MAX]
                secret, token = await sources.tokens.create_token(
                    display_name=name, valid_s=valid_s
                )
                line = f"plait node join {sources.join_address} --token {secret}"
                made.show(access.draw_join_line(token, line))
                _log.info("enrolment_token_created", token_id=token.token_id)
            case "revoke-token":
                await sources.tokens.revoke_token(action.value)
                frame.say(f"Token {action.value} is revoked.")
                _log.info("enrolment_token_revoked", token_id=action.value)
        await tick()

    head, asked, made, listed = frame.regions(4, do, is_narrow=True)
    head.show(page_head("Enrolment"))
    asked.show(access.draw_token_form())

    async def tick() -> None:
        tokens = await sources.tokens.list_tokens()
        listed.show(access.draw_tokens(tokens, wanted, sources.snapshot.current().names))

    await frame.run(tick)


async def keys_page(sources: Sources, request: Request) -> None:
    """Create, weigh, list and revoke API keys."""
    frame = Frame(sources, request, at="keys")
    wanted = wanted_of("keys", request.query_params, ())

    async def do(action: Action) -> None:
        match action.name:
            case "create-key":
                secret, key = await sources.keys.create_key(
                    display_name=action.fields.get("display_name", "")[:NAME_CHARS_MAX],
                    is_admin=action.fields.get("is_admin") == "yes",
                    weight=_weight(action.fields.get("weight", "") or "1"),
                    limits=parse_limits(action.fields, sources.clock.unix_ms()),
                )
                note = f"{key.key_id} for {key.display_name or 'nobody in particular'}."
                made.show(access.draw_secret("The new key", secret, f"{note} It is shown once."))
                _log.info("api_key_created", key_id=key.key_id, is_admin=key.is_admin)
            case "weigh-key":
                key_id = action.fields.get("key_id", "")
                weight = _weight(action.fields.get("weight", ""))
                await sources.keys.weigh_key(key_id, weight)
                frame.say(f"Key {key_id} weighs {weight:g} from its next request on.")
                _log.info("api_key_weighed", key_id=key_id, weight=weight)
            case "limit-key":
                key_id = action.fields.get("key_id", "")
                limits = parse_limits(action.fields, sources.clock.unix_ms())
                await sources.keys.limit_key(key_id, limits)
                frame.say(f"Key {key_id} has these limits within a few seconds.")
                _log.info("api_key_limited", key_id=key_id)
            case "revoke-key":
                await sources.keys.revoke_key(action.value)
                sources.sessions.close_key(action.value)
                frame.say(f"Key {action.value} is revoked.")
                _log.info("api_key_revoked", key_id=action.value)
        await tick()

    head, asked, made, listed, limited, weighed = frame.regions(6, do, is_narrow=True)
    head.show(page_head("API keys"))
    asked.show(access.draw_key_form())

    async def tick() -> None:
        keys = await sources.keys.list_keys()
        listed.show(access.draw_keys(keys, wanted))
        limited.show(access.draw_limit_form(keys))
        weighed.show(access.draw_weigh_form(keys))

    await frame.run(tick)


def parse_limits(fields: Mapping[str, str], now_unix_ms: int) -> KeyLimits:
    """What a form says of a key's limits. Raises InvalidRequestError that names the field."""
    days = _count(fields, "lasts_days")
    models = (name.strip() for name in fields.get("models", "").split(","))
    return KeyLimits(
        requests_per_min=_count(fields, "requests_per_min"),
        tokens_per_min=_count(fields, "tokens_per_min"),
        models=tuple(name for name in models if name),
        expires_unix_ms=None if days is None else now_unix_ms + days * DAY_MS,
    )


def _count(fields: Mapping[str, str], name: str) -> int | None:
    word = fields.get(name, "")
    if not word:
        return None
    if not (word.isascii() and word.isdecimal() and 1 <= int(word[:12]) <= COUNT_MAX):
        what = name.replace("_", " ")
        raise InvalidRequestError(f"{what}: a whole number above 0, not {word!r}", param=name)
    return int(word)


def _weight(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise InvalidRequestError(
            f"a key's weight is a number such as 1 or 0.5, not {word!r}", param="weight"
        ) from None
