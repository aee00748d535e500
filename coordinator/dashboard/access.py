"""Enrolment tokens and API keys as HTML. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from coordinator.dashboard import figures
from coordinator.dashboard.markup import button, chip, moment, row, section, table, text
from coordinator.dashboard.nodes import node_link
from coordinator.dashboard.paging import Wanted, pager
from coordinator.ports import ApiKey, EnrolmentToken, KeyLimits

TOKEN_HEADS: Final = (
    ("Token", ""),
    ("For", ""),
    ("State", ""),
    ("Expires", ""),
    ("Node", ""),
    ("", "act"),
)
KEY_HEADS: Final = (("Key", ""), ("Whose", ""), ("Rights", ""), ("Created", ""), ("", "act"))
LASTING_DAYS: Final = (("", "ever"), ("1", "1 day"), ("30", "30 days"), ("365", "1 year"))
TOKEN_TONES: Final = {"unused": "ok", "used": "calm", "expired": "warn", "revoked": "bad"}
VALIDITIES: Final = ((3_600, "1 hour"), (86_400, "1 day"), (604_800, "1 week"))


def draw_token_form() -> str:
    """The form that creates a token."""
    options = "".join(
        f'<option value="{valid_s}"{" selected" if valid_s == 86_400 else ""}>{title}</option>'
        for valid_s, title in VALIDITIES
    )
    form = (
        '<form class="form" data-action="create-token">'
        '<label>Whose machine<input name="display_name" maxlength="64" autocomplete="off" '
        'placeholder="for your own record"></label>'
        f'<label>Valid for<select name="valid_s">{options}</select></label>'
        '<button class="btn btn-primary">Create token</button></form>'
    )
    note = "A token lets one machine join, once. Give its line to whoever owns the machine."
    return section("Invite a machine", form, description=note)


def draw_join_line(token: EnrolmentToken, line: str) -> str:
    """What the machine's owner runs, and what comes before it."""
    note = (
        f"Token {token.token_id}. It is shown once and works once. plait is installed there "
        "already? The line below is all; `plait node doctor` in place of `plait node join` only "
        "looks whether it would work."
    )
    return draw_secret("Run this on the machine", line, note)


def draw_tokens(tokens: Sequence[EnrolmentToken], wanted: Wanted, names: Mapping[str, str]) -> str:
    """All tokens, without their secrets."""
    rows = (row(t.token_id, TOKEN_HEADS, _token_cells(t, names)) for t in wanted.cut(tokens))
    unused = sum(token.state == "unused" for token in tokens)
    body = table("Tokens", TOKEN_HEADS, rows, empty="No token yet: create one above.")
    return section("Tokens", body + pager(wanted, len(tokens)), aside=f"{unused} unused")


def draw_key_form() -> str:
    """The form that creates a key."""
    form = (
        '<form class="form" data-action="create-key">'
        '<label>Whose key<input name="display_name" maxlength="64" autocomplete="off" required '
        'placeholder="a person or a program"></label>'
        f"{_weight_field()}{_limit_fields()}"
        '<label class="check"><input type="checkbox" name="is_admin" value="yes">'
        "May administer the network</label>"
        '<button class="btn btn-primary">Create key</button></form>'
    )
    note = (
        "Clients send it as a bearer token. It is stored hashed and shown once. A key of weight 2 "
        "is served two tokens in the time in which one of 1 is served one, while both wait. Fields "
        "that are left empty set no limit."
    )
    return section("Create a key", form, description=note)


def draw_keys(keys: Sequence[ApiKey], wanted: Wanted) -> str:
    """All keys, without their secrets."""
    rows = (row(key.key_id, KEY_HEADS, _key_cells(key)) for key in wanted.cut(keys))
    valid = sum(not key.is_revoked for key in keys)
    body = table("API keys", KEY_HEADS, rows, empty="No key yet: create one above.")
    return section("Keys", body + pager(wanted, len(keys)), aside=f"{valid} valid")


def draw_limit_form(keys: Sequence[ApiKey]) -> str:
    """The form that gives a client's key other limits; nothing without one."""
    options = _key_options([key for key in keys if not key.is_admin])
    if not options:
        return ""
    form = (
        '<form class="form" data-action="limit-key">'
        f'<label>Client\'s key<select name="key_id">{options}</select></label>{_limit_fields()}'
        '<button class="btn">Change limits</button></form>'
    )
    note = "In place of those that it has; fields that are left empty set no limit."
    return section("Change a key's limits", form, description=note)


def draw_weigh_form(keys: Sequence[ApiKey]) -> str:
    """The form that gives a key another weight; nothing without a key that has one."""
    options = _key_options(keys)
    if not options:
        return ""
    form = (
        '<form class="form" data-action="weigh-key">'
        f'<label>Key<select name="key_id">{options}</select></label>{_weight_field()}'
        '<button class="btn">Change weight</button></form>'
    )
    return section("Change a key's weight", form)


def draw_secret(title: str, secret: str, note: str) -> str:
    """Something that is shown once, with a button that copies it."""
    body = (
        f'<div class="secret"><code id="secret">{text(secret)}</code>'
        '<button type="button" class="btn btn-primary" data-copy="#secret">Copy</button></div>'
    )
    return section(title, body, description=text(note))


def _key_options(keys: Sequence[ApiKey]) -> str:
    return "".join(
        f'<option value="{text(key.key_id)}">{text(key.display_name or key.key_id)}, '
        f"{key.weight:g}</option>"
        for key in keys
        if not key.is_revoked
    )


def _limit_fields() -> str:
    lasting = "".join(f'<option value="{days}">{title}</option>' for days, title in LASTING_DAYS)
    return (
        '<label>Requests a minute<input class="short" name="requests_per_min" type="number" '
        'min="1" inputmode="numeric"></label>'
        '<label>Tokens a minute<input class="short" name="tokens_per_min" type="number" min="1" '
        'inputmode="numeric"></label>'
        '<label>Models<input name="models" maxlength="500" autocomplete="off" '
        'placeholder="names, by comma; empty: all"></label>'
        f'<label>Good for<select name="lasts_days">{lasting}</select></label>'
    )


def _weight_field() -> str:
    return (
        '<label>Weight in the queue<input class="short" name="weight" type="number" min="0.01" '
        'max="100" step="0.01" value="1" inputmode="decimal"></label>'
    )


def _token_cells(token: EnrolmentToken, names: Mapping[str, str]) -> tuple[str, ...]:
    revoke = (
        button(
            "Revoke",
            "revoke-token",
            token.token_id,
            confirm="Revoke now?",
            described=f"Revoke token {token.token_id}",
        )
        if token.state == "unused"
        else ""
    )
    return (
        f'<span class="mono">{text(token.token_id)}</span>',
        text(token.display_name) or figures.DASH,
        chip(token.state, TOKEN_TONES.get(token.state, "calm")),
        moment(token.expires_unix_ms),
        node_link(names, token.node_id) if token.node_id else figures.DASH,
        revoke,
    )


def _key_cells(key: ApiKey) -> tuple[str, ...]:
    rights = chip("revoked", "bad") if key.is_revoked else chip("valid", "ok")
    revoke = (
        ""
        if key.is_revoked
        else button(
            "Revoke",
            "revoke-key",
            key.key_id,
            confirm="Revoke now?",
            described=f"Revoke key {key.key_id}",
        )
    )
    return (
        f'<span class="mono">{text(key.key_id)}</span>',
        text(key.display_name) or figures.DASH,
        rights
        + f'<span class="cell-note">{_kind(key)}</span>'
        + f'<span class="cell-note">{_limits(key.limits)}</span>',
        moment(key.created_unix_ms),
        revoke,
    )


def _kind(key: ApiKey) -> str:
    weight = "" if key.weight == 1.0 else f", weight {key.weight:g}"
    return ("admin" if key.is_admin else "client") + weight


def _limits(limits: KeyLimits) -> str:
    """What a client's key may ask for, in words; "" where there is no limit."""
    parts = [
        f"{figures.count(most)} {what} a minute"
        for most, what in (
            (limits.requests_per_min, "requests"),
            (limits.tokens_per_min, "tokens"),
        )
        if most is not None
    ]
    if limits.models:
        parts.append(f"only {', '.join(limits.models)}")
    drawn = text("; ".join(parts))
    if limits.expires_unix_ms is not None:
        drawn += f"{'; ' if parts else ''}until {moment(limits.expires_unix_ms)}"
    return drawn
