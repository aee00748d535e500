"""`plait request`: what became of a request, and why it went where it went."""

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from coordinator.core.view import DecisionView, RequestView

app = typer.Typer(help="Look at requests: where they ran, and why there.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Look at requests: where they ran, and why there."""


@app.command()
def show(
    request_id: Annotated[str, typer.Argument(help="As answers and `plait status` name it.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """One request that is open or among the last thousand that ended: its chain, the others that
    were priced, and why."""
    from dataclasses import asdict

    from rich.console import Console

    request, names = asyncio.run(_look_up(request_id))
    if as_json:
        typer.echo(json.dumps(asdict(request), indent=1))
        return
    console = Console()
    for part in draw(request, names):
        console.print(part)


def matching(requests: "tuple[RequestView, ...]", request_id: str) -> "list[RequestView]":
    """The request of that id, or all whose ids begin so."""
    found = [r for r in requests if r.request_id == request_id]
    return found or [r for r in requests if r.request_id.startswith(request_id)]


def find(requests: "tuple[RequestView, ...]", request_id: str) -> "RequestView":
    """The request of that id, or the only one whose id begins so. Raises ConfigError."""
    from plait.errors import ConfigError

    found = matching(requests, request_id)
    if len({r.request_id for r in found}) != 1:
        what = "no request" if not found else f"{len(found)} requests"
        raise ConfigError(
            f"{what} {request_id!r} among those that are open or ended lately: `plait status` "
            "lists them"
        )
    return found[0]


def draw(request: "RequestView", names: dict[str, str]) -> "list[RenderableType]":
    """For people."""
    parts: list[RenderableType] = [_outcome(request)]
    if request.route:
        hops = (f"{names.get(h.node_id, h.node_id)} {_layers(h.span)}" for h in request.route)
        parts.append("chain: " + " -> ".join(hops))
    for decision in request.decisions:
        parts.append("")
        parts += _decision(decision, names)
    return parts


def _outcome(request: "RequestView") -> str:
    text = f"{request.request_id}: {request.state}"
    if request.finish_reason:
        text += f" ({request.finish_reason})"
    text += (
        f", {request.prompt_tokens} + {request.num_generated} of {request.max_new_tokens} tokens"
    )
    if request.cached_tokens:
        text += f", {request.cached_tokens} of the prompt from earlier requests"
    if request.ttft_ms is not None:
        text += f", first token after {request.ttft_ms} ms"
    if request.tokens_per_s:
        text += f", then {request.tokens_per_s:.1f} tokens/s"
    if request.total_ms is not None:
        text += f", all after {request.total_ms} ms"
    if request.guesses.guessed:
        guesses = request.guesses
        text += (
            f"; {guesses.trips} trips, {guesses.accepted} of {guesses.guessed} guessed tokens right"
        )
    return text + (f"; {request.reason}" if request.reason else "")


def _decision(decision: "DecisionView", names: dict[str, str]) -> "list[RenderableType]":
    from rich.table import Table

    attempt = f" (chain {decision.epoch})" if decision.epoch > 1 else ""
    head = f"after {decision.at_ms} ms: {decision.verdict}{attempt}: {decision.why}"
    if decision.ttft_ms is not None and decision.token_ms is not None:
        head += (
            f"; expected: first token after {decision.ttft_ms:.0f} ms, "
            f"then one in {decision.token_ms:.1f} ms"
        )
    if not decision.considered:
        return [head]
    table = Table("chain", "price", "wait", "prefill", "decode", "hops", "")
    for one in decision.considered:
        figures = (one.total_ms, one.wait_ms, one.prefill_ms, one.decode_ms, one.hops_ms)
        where = f"{names.get(one.obstacle, one.obstacle)}: " if one.obstacle else ""
        table.add_row(
            " -> ".join(names.get(n, n) for n in one.chain),
            *("-" if figure is None else f"{figure:.0f}" for figure in figures),
            where + one.note,
        )
    return [head, table]


def _layers(span: tuple[int, int]) -> str:
    return f"{span[0]}-{span[1] - 1}"


async def _look_up(request_id: str) -> "tuple[RequestView, dict[str, str]]":
    """The request, from the network or from the store, and names of nodes by id."""
    from coordinator.view_json import network_from_json, request_from_json
    from plait.cli.status import connected_admin

    async with connected_admin() as admin:
        view = network_from_json(await admin.fetch())
        names = view.display_names
        if matching(view.requests, request_id):
            return find(view.requests, request_id), names
        text, kept_names = await admin.past_request(request_id)
        return request_from_json(text), {**names, **kept_names}
