"""`plait demo`: a whole network on this machine, one question, one answer, nothing left behind."""

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from plait.cli.extras import needs
from plait.errors import ConfigError, PlaitError

if TYPE_CHECKING:
    from coordinator.core.view import NetworkView
    from plait.cli.local_network import LocalNetwork
    from plait.types import ModelSpec

MODEL: Final = "smollm2-135m-instruct"
SERVE_S: Final = 240.0
KV_TOKENS: Final = 1_024
INTERRUPTED: Final = 130

app = typer.Typer(help="Run a whole network on this machine and ask it a question.")
console = Console()


@app.callback(invoke_without_command=True)
def demo(
    prompt: Annotated[
        str, typer.Option(help="What to ask.")
    ] = "Why is the sky blue? Answer in two sentences.",
    nodes: Annotated[int, typer.Option(min=1, max=16, help="Node processes.")] = 3,
    model: Annotated[str, typer.Option(help="Catalogue name, hub id, folder or GGUF.")] = MODEL,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 96,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the network running until Ctrl-C.")
    ] = False,
) -> None:
    """Pull a small model, start a coordinator and nodes of which none can hold it all, and ask.

    Everything runs on loopback with real tokens, mutual TLS, tickets, keys and MQTT.
    """
    if not prompt.strip():
        raise ConfigError("--prompt is empty")
    needs("coordinator", "node")
    _turn_signals_into_interrupts()
    # The first line before the libraries, which take seconds.
    console.print(f"[dim]plait demo: {escape(model)} over {nodes} nodes on this machine[/]")
    spec = _pull(model)
    home = Path(tempfile.mkdtemp(prefix="plait-demo-"))
    code = 0
    try:
        _run(
            home,
            spec,
            model=model,
            num_nodes=nodes,
            prompt=prompt,
            max_tokens=max_tokens,
            keep=keep,
        )
    except KeyboardInterrupt:
        code = INTERRUPTED
    except PlaitError:
        console.print(f"[yellow]The processes' logs stay in {home / 'logs'}[/]")
        raise
    shutil.rmtree(home, ignore_errors=True)
    raise typer.Exit(code)


def _run(
    home: Path,
    spec: "ModelSpec",
    *,
    model: str,
    num_nodes: int,
    prompt: str,
    max_tokens: int,
    keep: bool,
) -> None:
    began_s = time.perf_counter()
    console.print("[dim]starting the coordinator[/]")
    from plait.cli.demo_view import nodes_table
    from plait.cli.local_network import NodePlan, local_network

    memory_bytes = memory_cap_bytes(spec, num_nodes)
    # The cap on memory below is reckoned in float32.
    options = ("--kv-tokens", str(KV_TOKENS), "--weights", "fp32")
    with (
        local_network(home=home, model=model, num_nodes=num_nodes, options=options) as network,
        _stopping(),
    ):
        up = f"coordinator up, network {network.view().network_id}; starting {num_nodes} nodes"
        console.print(f"[dim]{up}[/]")
        for number in range(1, num_nodes + 1):
            network.start_node(NodePlan(name=f"node {number}", memory_bytes=memory_bytes))
        view = _watched(network, spec)
        waited_s = time.perf_counter() - began_s
        title = f"{spec.model_id}: {spec.num_layers} layers over {num_nodes} nodes"
        console.print(nodes_table(view, title=f"{title}, serving after {waited_s:.1f} s"))
        _ask(network, spec, prompt, max_tokens)
        if keep:
            with contextlib.suppress(KeyboardInterrupt):
                _linger(network)


def _watched(network: "LocalNetwork", spec: "ModelSpec") -> "NetworkView":
    """The network once it serves, its nodes shown while they load."""
    from plait.cli.demo_view import LoadPatience, nodes_table
    from plait.cli.local_network import is_ready

    patience = LoadPatience()
    with Live(console=console, refresh_per_second=8, transient=True) as live:

        def show(view: "NetworkView") -> None:
            live.update(nodes_table(view))
            patience.check(view, time.perf_counter())

        return network.wait(
            is_ready, timeout_s=SERVE_S, what=f"serving {spec.model_id}", watch=show
        )


def memory_cap_bytes(
    spec: "ModelSpec", num_nodes: int, *, kv_tokens: int = KV_TOKENS
) -> int | None:
    """A cap that lets `num_nodes` hold the model together with `kv_tokens`, and none of them alone.

    Counted in fp32 with KV and buffers, as the planner does. None for one node: it needs it all.
    """
    from plait.types import DType
    from scheduler.cost import buffer_bytes, role_bytes

    if num_nodes == 1:
        return None
    dtype = DType.FLOAT32
    kv_tokens = min(kv_tokens, spec.context_tokens_max)
    layer_bytes = spec.layer_bytes(dtype)
    layer_bytes += kv_tokens * spec.kv_bytes_per_token(1, dtype)
    ends = role_bytes(spec, dtype, is_first=True, is_last=False)
    ends += role_bytes(spec, dtype, is_first=False, is_last=True)
    middles = (num_nodes - 2) * buffer_bytes(spec, dtype, is_last=False)
    total = ends + middles + spec.num_layers * layer_bytes
    fair = total / num_nodes + 2 * layer_bytes
    largest_role = role_bytes(spec, dtype, is_first=False, is_last=True) + layer_bytes
    alone = role_bytes(spec, dtype, is_first=True, is_last=True) + spec.num_layers * layer_bytes
    return int(min(max(fair, largest_role), alone - layer_bytes / 2))


def _pull(model: str) -> "ModelSpec":
    """The model's weights on this machine, with a progress bar, and its shape."""
    from plait.cli.progress_bar import pull_bar
    from plait.models import load_spec, pull, resolve

    source = resolve(model)
    with pull_bar(console, model) as progress:
        source = pull(source, progress=progress)
    return load_spec(source)


def _ask(network: "LocalNetwork", spec: "ModelSpec", prompt: str, max_tokens: int) -> None:
    """Stream the answer and end with its figures. Greedy: the same question, the same answer."""
    from plait.cli.ask import figures
    from plait.sdk import Client

    profile = network.profile
    console.print(Text.assemble(("\nyou    ", "bold"), prompt))
    console.print("[bold]model[/]  ", end="")
    with (
        Client(profile.address, profile.api_key, profile.ca_pem) as client,
        client.stream(
            [{"role": "user", "content": prompt}],
            model=spec.model_id,
            max_tokens=max_tokens,
            temperature=0.0,
        ) as stream,
    ):
        for delta in stream:
            console.out(delta.text, end="", highlight=False)
        console.print()
    console.print(Text(f"\n{figures(stream.result)}", style="dim"), soft_wrap=True)


def _linger(network: "LocalNetwork") -> None:
    """Until Ctrl-C, or until a child dies."""
    home, profile = network.home / "coordinator-home", network.profile
    line = f"\ndashboard {profile.http_url}/dashboard, admin key {profile.api_key}"
    console.print(Text(line, style="dim"), soft_wrap=True)
    console.print(f"The network keeps running; in another terminal: PLAIT_HOME={home} plait status")
    console.print("Ctrl-C stops it.")
    while True:
        network.children.check()
        time.sleep(0.5)


@contextlib.contextmanager
def _stopping() -> Iterator[None]:
    """At the end, however it comes: say that it takes a moment, and let nothing interrupt it."""
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        console.print("[dim]stopping[/]")


def _turn_signals_into_interrupts() -> None:
    """SIGTERM and SIGHUP stop the children as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
