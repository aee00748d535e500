"""`plait token`: who may join the network, and who may ask it."""

import asyncio
import datetime as dt
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from plait.clock import SystemClock
from plait.errors import ConfigError

if TYPE_CHECKING:
    from grpc import aio

    from plait.wire.v1.admin_pb2 import ApiKeyEntry, KeyLimits
    from plait.wire.v1.admin_pb2_grpc import AdminServiceAsyncStub

app = typer.Typer(help="Tokens that let nodes join; keys for clients.", no_args_is_help=True)
keys = typer.Typer(help="API keys of clients and operators.", no_args_is_help=True)
app.add_typer(keys, name="key")

CALL_S: Final = 10.0
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
RequestsPerMin = Annotated[
    int, typer.Option("--requests-per-min", min=0, help="At most so many requests; 0: no limit.")
]
TokensPerMin = Annotated[
    int,
    typer.Option(
        "--tokens-per-min", min=0, help="Tokens of prompts and answers together; 0: no limit."
    ),
]
Models = Annotated[
    list[str] | None, typer.Option("--model", help="May ask this one; repeat it. Default: all.")
]
Expires = Annotated[str, typer.Option("--expires-in", help="How long it is good: 12h, 30d, 52w.")]
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")


@app.command("create")
def create_token(
    valid: Annotated[str, typer.Option(help="How long: 30m, 12h, 1d, 2w.")] = "1d",
    name: Annotated[str, typer.Option(help="A note for yourself, e.g. whose node it is.")] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the token alone.")] = False,
) -> None:
    """Make a token that lets one node join, once."""
    from plait.wire.v1 import admin_pb2 as pb

    valid_s = parse_duration_s(valid)
    request = pb.CreateEnrolmentTokenRequest(valid_s=valid_s, display_name=name)
    answer = _ask(lambda stub: stub.CreateEnrolmentToken, request)
    if quiet:
        typer.echo(answer.token)
        return
    console = Console(stderr=True)
    console.print(
        f"Token [bold]{answer.token_id}[/] is good for one node, until "
        f"{_moment(answer.expires_unix_ms)}. Run this on the volunteer's machine:\n"
    )
    typer.echo(answer.join_command)


@app.command("list")
def list_tokens() -> None:
    """Show all tokens, used ones too. Secrets are never shown again."""
    from plait.wire.v1 import admin_pb2 as pb

    answer = _ask(lambda stub: stub.ListEnrolmentTokens, pb.ListEnrolmentTokensRequest())
    table = _table("token", "name", "state", "expires", "node")
    for entry in answer.tokens:
        table.add_row(
            entry.token_id,
            _plain(entry.display_name),
            entry.state,
            _moment(entry.expires_unix_ms),
            entry.node_id,
        )
    _print(table, empty="No tokens yet: `plait token create` makes one.")


@app.command("revoke")
def revoke_token(
    token_id: Annotated[str, typer.Argument(help="As `plait token list` shows it.")],
) -> None:
    """Refuse a token from now on. A node that used it stays in the network."""
    from plait.wire.v1 import admin_pb2 as pb

    request = pb.RevokeEnrolmentTokenRequest(token_id=token_id)
    _ask(lambda stub: stub.RevokeEnrolmentToken, request)
    typer.echo(f"token {token_id} is revoked")


@app.command("ban")
def ban_node(
    node_id: Annotated[str, typer.Argument(help="As `plait status` shows it.")],
    lift: Annotated[bool, typer.Option("--lift", help="Let it in again.")] = False,
) -> None:
    """Keep a node out of the network: its routes end, its certificate is not renewed."""
    from plait.wire.v1 import admin_pb2 as pb

    request = pb.BanNodeRequest(node_id=node_id, is_lifted=lift)
    _ask(lambda stub: stub.BanNode, request)
    typer.echo(f"node {node_id} {'may join again' if lift else 'is banned'}")


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Option(help="Whose key it is.")] = "",
    admin: Annotated[bool, typer.Option("--admin", help="May run the network too.")] = False,
    weight: Annotated[
        float, typer.Option(help="Share of the queue beside keys of 1, where many wait.")
    ] = 1.0,
    requests_per_min: RequestsPerMin = 0,
    tokens_per_min: TokensPerMin = 0,
    models: Models = None,
    expires_in: Expires = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the key alone.")] = False,
) -> None:
    """Make an API key. It is shown once."""
    from plait.wire.v1 import admin_pb2 as pb

    if not weight > 0.0:  # 0 says nothing on the wire
        raise ConfigError(f"--weight {weight:g}: a key's weight is above 0")
    limits = _limits(requests_per_min, tokens_per_min, models, expires_in)
    request = pb.CreateApiKeyRequest(
        display_name=name, is_admin=admin, weight=weight, limits=limits
    )
    answer = _ask(lambda stub: stub.CreateApiKey, request)
    if not quiet:
        kind = "an operator's" if admin else "a client's"
        Console(stderr=True).print(
            f"Key [bold]{answer.key_id}[/], {kind}. Keep it safe: it is not shown again.\n"
        )
    typer.echo(answer.key)


@keys.command("list")
def list_keys() -> None:
    """Show all keys, without their secrets."""
    from plait.wire.v1 import admin_pb2 as pb

    answer = _ask(lambda stub: stub.ListApiKeys, pb.ListApiKeysRequest())
    table = _table("key", "name", "kind", "weight", "limits", "state", "created")
    for entry in answer.keys:
        table.add_row(
            entry.key_id,
            _plain(entry.display_name),
            "operator" if entry.is_admin else "client",
            f"{entry.weight or 1.0:g}",
            _plain(_limits_text(entry.limits)),
            _key_state(entry),
            _moment(entry.created_unix_ms),
        )
    _print(table, empty="No keys yet: `plait token key create` makes one.")


@keys.command("weigh")
def weigh_key(
    key_id: Annotated[str, typer.Argument(help="As `plait token key list` shows it.")],
    weight: Annotated[float, typer.Argument(help="Share of the queue beside keys of 1.")],
) -> None:
    """Give a key another share of the queue, at once."""
    from plait.wire.v1 import admin_pb2 as pb

    request = pb.WeighApiKeyRequest(key_id=key_id, weight=weight)
    _ask(lambda stub: stub.WeighApiKey, request)
    typer.echo(f"key {key_id} weighs {weight:g}")


@keys.command("limit")
def limit_key(
    key_id: Annotated[str, typer.Argument(help="As `plait token key list` shows it.")],
    requests_per_min: RequestsPerMin = 0,
    tokens_per_min: TokensPerMin = 0,
    models: Models = None,
    expires_in: Expires = "",
) -> None:
    """Give a key these limits in place of those that it has; without options: none."""
    from plait.wire.v1 import admin_pb2 as pb

    limits = _limits(requests_per_min, tokens_per_min, models, expires_in)
    _ask(lambda stub: stub.LimitApiKey, pb.LimitApiKeyRequest(key_id=key_id, limits=limits))
    typer.echo(f"key {key_id}: {_limits_text(limits)}")


@keys.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="As `plait token key list` shows it.")],
) -> None:
    """Refuse a key from now on."""
    from plait.wire.v1 import admin_pb2 as pb

    request = pb.RevokeApiKeyRequest(key_id=key_id)
    _ask(lambda stub: stub.RevokeApiKey, request)
    typer.echo(f"key {key_id} is revoked")


def parse_duration_s(text: str) -> int:
    """Seconds in "90", "30m", "12h", "1d" or "2w". Raises ConfigError."""
    match = re.fullmatch(r"(\d{1,9})\s*([smhdw]?)", text.strip().lower(), re.ASCII)
    seconds = int(match[1]) * _UNITS[match[2] or "s"] if match else 0
    if not 0 < seconds < 2**32:
        raise ConfigError(f"{text!r} is not a duration: give e.g. 30m, 12h, 1d or 2w")
    return seconds


def _limits(
    requests_per_min: int, tokens_per_min: int, models: list[str] | None, expires_in: str
) -> "KeyLimits":
    from plait.wire.v1 import admin_pb2 as pb

    left_s = parse_duration_s(expires_in) if expires_in else 0
    now_ms = SystemClock().unix_ms()
    return pb.KeyLimits(
        requests_per_min=requests_per_min,
        tokens_per_min=tokens_per_min,
        models=models or [],
        expires_unix_ms=now_ms + left_s * 1000 if left_s else 0,
    )


def _limits_text(limits: "KeyLimits") -> str:
    parts = [
        f"{amount:,} {unit}/min"
        for amount, unit in (
            (limits.requests_per_min, "requests"),
            (limits.tokens_per_min, "tokens"),
        )
        if amount
    ]
    if limits.models:
        parts.append("only " + ", ".join(limits.models))
    if limits.expires_unix_ms:
        parts.append(f"until {_moment(limits.expires_unix_ms)}")
    return "; ".join(parts) or "no limits"


def _key_state(entry: "ApiKeyEntry") -> str:
    if entry.is_revoked:
        return "revoked"
    expires_ms = entry.limits.expires_unix_ms
    return "expired" if expires_ms and expires_ms <= SystemClock().unix_ms() else "valid"


def _ask(
    method: Callable[["AdminServiceAsyncStub"], "aio.UnaryUnaryMultiCallable[_Request, _Answer]"],
    request: _Request,
) -> _Answer:
    return asyncio.run(_ask_async(method, request))


async def _ask_async(
    method: Callable[["AdminServiceAsyncStub"], "aio.UnaryUnaryMultiCallable[_Request, _Answer]"],
    request: _Request,
) -> _Answer:
    from grpc import aio

    from plait.crypto.certificates import COORDINATOR_NAME
    from plait.sdk.settings import resolve
    from plait.wire.channel import secure_channel
    from plait.wire.reach import Address, check_reachable
    from plait.wire.status import error_from_rpc
    from plait.wire.v1.admin_pb2_grpc import AdminServiceStub

    settings = resolve(None, None, None)
    address, ca_pem = Address.parse(settings.address), settings.ca_pem
    await check_reachable(address, ca_pem=ca_pem, target_name=COORDINATOR_NAME)
    channel = secure_channel(str(address), ca_pem=ca_pem, target_name=COORDINATOR_NAME)
    try:
        return await method(AdminServiceStub(channel))(
            request,
            timeout=CALL_S,
            metadata=settings.metadata,
        )
    except aio.AioRpcError as error:
        raise error_from_rpc(error) from None
    finally:
        await channel.close()


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column in ("token", "key", "node"))
    return table


def _print(table: Table, *, empty: str) -> None:
    if table.row_count:
        Console().print(table)
    else:
        typer.echo(empty)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _moment(unix_ms: int) -> str:
    moment = dt.datetime.fromtimestamp(unix_ms / 1000, dt.UTC).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M %Z")
