"""`plait chat`: a conversation in the terminal."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.ask import figures
from plait.cli.waiting import told_waits
from plait.errors import InvalidRequestError, PlaitError, ServiceError

if TYPE_CHECKING:
    from rich.console import Console

    from plait.sdk import Client, GenerateOptions

app = typer.Typer(help="Talk to a model; the conversation is remembered until you leave.")

HELP = "/exit leaves · /reset forgets · Ctrl-C stops an answer"


@app.callback(invoke_without_command=True)
def run(
    model: Annotated[
        str, typer.Option("--model", "-m", help="Whom to ask.", show_default="the only one")
    ] = "",
    system: Annotated[str, typer.Option(help="A system message at the beginning.")] = "",
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds give equal answers.")] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the chain and figures of answers.")
    ] = False,
    address: Annotated[str | None, typer.Option(help="host:port of the coordinator.")] = None,
    api_key: Annotated[str | None, typer.Option(help="A client key of the network.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The network's CA certificate.")] = None,
) -> None:
    """Talk to a model; the conversation is remembered until you leave."""
    from rich.console import Console

    from plait.sdk import Client

    options: GenerateOptions = {
        "model": model or None,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    console = Console(highlight=False)
    with Client(address, api_key, ca) as client:
        console.print(HELP, style="dim")
        Conversation(client, console, options, system=system, is_verbose=verbose).run()


class Conversation:
    """History and loop of one chat. An answer that is stopped stays in the history as it is."""

    def __init__(
        self,
        client: "Client",
        console: "Console",
        options: "GenerateOptions",
        *,
        system: str,
        is_verbose: bool,
    ) -> None:
        self._client = client
        self._console = console
        self._options = options
        self._is_verbose = is_verbose
        self._opening = [{"role": "system", "content": system}] if system else []
        self.turns = list(self._opening)

    def run(self) -> None:
        """Until /exit, end of input or Ctrl-C at the prompt."""
        while True:
            try:
                text = self._console.input("[bold cyan]you[/] ").strip()
            except (EOFError, KeyboardInterrupt):
                self._console.print()
                return
            if text in ("/exit", "/quit"):
                return
            if text == "/reset":
                self.turns = list(self._opening)
                self._console.print("forgotten", style="dim")
            elif text == "/help":
                self._console.print(HELP, style="dim")
            elif text.startswith("/"):
                self._console.print(f"{text.split()[0]} is no command; {HELP}", style="yellow")
            elif text:
                self.say(text)

    def say(self, text: str) -> None:
        """One question and its answer. A failure is told, and the question taken back."""
        self.turns.append({"role": "user", "content": text})
        answer = ""
        try:
            answer = self._answer()
        except (ServiceError, InvalidRequestError) as error:
            self._console.print(f"\n[bold red]error[/]: {_plain(error)}")
        if answer:
            self.turns.append({"role": "assistant", "content": answer})
        else:
            self.turns.pop()

    def _answer(self) -> str:
        with (
            self._client.stream(self.turns, **self._options) as stream,
            told_waits(stream, self._tell),
        ):
            try:
                for delta in stream:
                    self._console.print(delta.text, end="", markup=False, soft_wrap=True)
            except KeyboardInterrupt:
                stream.close()
                self._console.print(" [stopped]", style="dim", markup=False)
                return stream.text
            self._console.print()
            if self._is_verbose:
                self._console.print(figures(stream.result), style="dim", markup=False)
            return stream.text

    def _tell(self, why: str) -> None:
        self._console.print(f"\n(waiting: {why}; Ctrl-C gives up)", style="dim", markup=False)


def _plain(error: PlaitError) -> str:
    from rich.markup import escape

    return escape(error.message)
