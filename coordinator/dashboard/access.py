"""Enrolment tokens and API keys as HTML. Pure."""

import datetime as dt
from collections.abc import Sequence
from typing import Final

from coordinator.dashboard import figures
from coordinator.dashboard.markup import button, chip, row, section, table, text
from coordinator.ports import ApiKey, EnrolmentToken

TOKEN_HEADS: Final = (
    ("Token", ""),
    ("For", ""),
    ("State", ""),
    ("Expires", ""),
    ("Node", ""),
    ("", "act"),
)
KEY_HEADS: Final = (("Key", ""), ("Whose", ""), ("Rights", ""), ("Created", ""), ("", "act"))
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


def draw_tokens(tokens: Sequence[EnrolmentToken]) -> str:
    """All tokens, without their secrets."""
    rows = (row(token.token_id, TOKEN_HEADS, _token_cells(token)) for token in tokens)
    return section("Tokens", table("Tokens", TOKEN_HEADS, rows, empty="No token yet."))


def draw_key_form() -> str:
    """The form that creates a key."""
    form = (
        '<form class="form" data-action="create-key">'
        '<label>Whose key<input name="display_name" maxlength="64" autocomplete="off" required '
        'placeholder="a person or a program"></label>'
        '<label class="check"><input type="checkbox" name="is_admin" value="yes">'
        "May administer the network</label>"
        '<button class="btn btn-primary">Create key</button></form>'
    )
    note = "Clients send it as a bearer token. It is stored hashed and shown once."
    return section("Create a key", form, description=note)


def draw_keys(keys: Sequence[ApiKey]) -> str:
    """All keys, without their secrets."""
    rows = (row(key.key_id, KEY_HEADS, _key_cells(key)) for key in keys)
    return section("Keys", table("API keys", KEY_HEADS, rows, empty="No key yet."))


def draw_secret(title: str, secret: str, note: str) -> str:
    """Something that is shown once, with a button that copies it."""
    body = (
        f'<div class="secret"><code id="secret">{text(secret)}</code>'
        '<button type="button" class="btn btn-primary" data-copy="#secret">Copy</button></div>'
    )
    return section(title, body, description=text(note))


def _token_cells(token: EnrolmentToken) -> tuple[str, ...]:
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
        _moment(token.expires_unix_ms),
        f'<span class="mono">{text(token.node_id)}</span>' if token.node_id else figures.DASH,
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
        rights + f'<span class="cell-note">{_kind(key)}</span>',
        _moment(key.created_unix_ms),
        revoke,
    )


def _kind(key: ApiKey) -> str:
    weight = "" if key.weight == 1.0 else f", weight {key.weight:g}"
    return ("admin" if key.is_admin else "client") + weight


def _moment(unix_ms: int) -> str:
    moment = dt.datetime.fromtimestamp(unix_ms / 1_000, dt.UTC)
    return f'<time datetime="{moment.isoformat()}">{moment:%Y-%m-%d %H:%M} UTC</time>'
