"""`plait ask`: one question, streamed to the terminal."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from plait.cli.waiting import told_waits
from plait.errors import InvalidRequestError

if TYPE_CHECKING:
    from plait.sdk import Completion, GenerateOptions

_END: Final = {"length": "cut at max_tokens", "stop": "complete"}

app = typer.Typer(
    help="Ask one question, and watch the answer come.",
    context_settings={"allow_interspersed_args": True},  # options may follow the prompt
)


@app.callback(invoke_without_command=True)
def run(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads standard input.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="Whom to ask.", show_default="the only one")
    ] = "",
    system: Annotated[str, typer.Option(help="A system message before the question.")] = "",
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens only.")] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds give equal answers.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="The answer ends before this.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the chain and figures at the end.")
    ] = False,
    address: Annotated[str | None, typer.Option(help="host:port of the coordinator.")] = None,
    api_key: Annotated[str | None, typer.Option(help="A client key of the network.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The network's CA certificate.")] = None,
) -> None:
    """Ask one question, and watch the answer come."""
    from plait.sdk import Client

    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise InvalidRequestError("the prompt is empty: plait ask 'Why is the sky blue?'")
    if raw and system:
        raise InvalidRequestError("--system needs the chat template: leave out --raw")
    options: GenerateOptions = {
        "model": model or None,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "stop": stop,
    }
    turns = [{"role": "system", "content": system}] if system else []
    turns.append({"role": "user", "content": text})
    with (
        Client(address, api_key, ca) as client,
        client.stream(text if raw else turns, **options) as stream,
        told_waits(stream, _tell),
    ):
        try:
            for delta in stream:
                print(delta.text, end="", flush=True)
        except KeyboardInterrupt:
            stream.close()
            print(file=sys.stderr)
            raise typer.Exit(130) from None
        print()
        if verbose:
            print(figures(stream.result), file=sys.stderr)


def _tell(why: str) -> None:
    """On standard error, so that the answer alone is on standard output."""
    sys.stdout.flush()
    print(f"\n(waiting: {why}; Ctrl-C gives up)", file=sys.stderr, flush=True)


def figures(answer: "Completion") -> str:
    """One line: the chain, tokens, times and rate of an answer."""
    chain = " → ".join(f"{hop.display_name or hop.node_id} [{hop.span}]" for hop in answer.route)
    retries = f" · {answer.num_attempts} chains" if answer.num_attempts > 1 else ""
    cached = f" ({answer.cached_tokens} cached)" if answer.cached_tokens else ""
    tokens = f"{answer.prompt_tokens}{cached} + {answer.completion_tokens} tokens"
    return (
        f"{chain} · {tokens} · first after "
        f"{answer.ttft_ms / 1000:.2f} s · {answer.tokens_per_s:.1f} tokens/s · "
        f"{_END.get(answer.finish_reason, answer.finish_reason)}{retries}"
    )
