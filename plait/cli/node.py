"""`plait node`: a machine joins a network and serves layers."""

from pathlib import Path
from typing import Annotated, Final

import typer

from plait.cli import (
    node_doctor,
    node_drain,
    node_install,
    node_pause,
    node_rank,
    node_status,
    node_top,
)
from plait.cli.amounts import parse_bytes as parse_bytes
from plait.cli.amounts import parse_listen
from plait.cli.durations import milliseconds
from plait.cli.extras import needs
from plait.cli.huge_pages import use_huge_pages
from plait.cli.node_keep import SETTINGS, keep
from plait.cli.node_owner import Home, Limits, Sets, allowed_device, owner_settings
from plait.errors import ConfigError

app = typer.Typer(help="Lend this machine to a network.", no_args_is_help=True)
app.command("keep", context_settings=SETTINGS)(keep)
app.command("status")(node_status.status)
app.command("doctor")(node_doctor.doctor)
app.command("install")(node_install.install)
app.command("uninstall")(node_install.uninstall)
app.command("top")(node_top.top)
app.command("drain")(node_drain.drain)
app.command("pause")(node_pause.pause)
app.command("resume")(node_pause.resume)
app.command("rank")(node_rank.rank)

_DTYPES: Final = ("auto", "float32", "bfloat16")
_KV_DTYPES: Final = ("auto", "native", "int8")
_WEIGHTS: Final = ("auto", "fp32", "fp16", "int8", "int4", "stored")
TOKEN_PREFIX: Final = "plait1."

Name = Annotated[str, typer.Option(help="What the operator sees.")]


@app.command("join")
def join_network(
    coordinator: Annotated[
        str, typer.Argument(help="HOST[:PORT] of the coordinator, or the token itself.")
    ] = "",
    token: Annotated[
        str | None, typer.Option(envvar="PLAIT_TOKEN", help="Needed the first time only.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="Read the token from this file, which may appear a little later."),
    ] = None,
    name: Name = "",
    memory: Annotated[
        str | None, typer.Option(help="Cap on weights and KV together, e.g. 2GiB.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the engine.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    weights: Annotated[
        str,
        typer.Option(
            help="Serve models in these numbers only: auto, fp32, fp16, int8, int4, stored."
        ),
    ] = "auto",
    listen: Annotated[
        str, typer.Option(help="Where neighbours are let in; port 0 is any free one.")
    ] = "0.0.0.0:0",
    advertise: Annotated[
        list[str] | None,
        typer.Option(help="HOST[:PORT] where neighbours reach this node; may be repeated."),
    ] = None,
    kv_tokens: Annotated[int, typer.Option(min=1, help="Most KV slots to keep.")] = 32_768,
    kv_dtype: Annotated[
        str,
        typer.Option(
            envvar="PLAIT_KV_DTYPE",
            help="Keep keys and values as: auto, native (the compute dtype), int8.",
        ),
    ] = "auto",
    chunk_prompts: Annotated[
        bool,
        typer.Option(
            "--chunk-prompts/--whole-prompts",
            help="Cut prompts so that tokens of other requests do not wait for them.",
        ),
    ] = True,
    draft_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            max=15,
            envvar="PLAIT_DRAFT_TOKENS",
            help="Guessed tokens that may go along with each one, where that pays; 0: none.",
        ),
    ] = 15,
    draft_model: Annotated[
        str,
        typer.Option(
            envvar="PLAIT_DRAFT_MODEL",
            help="Small model that guesses new text too, of the served one's vocabulary.",
        ),
    ] = "",
    drain_s: Annotated[
        float, typer.Option(min=0, help="How long running requests may take to end on leaving.")
    ] = 10.0,
    measure_s: Annotated[
        float,
        typer.Option(
            min=0.05,
            max=60,
            envvar="PLAIT_MEASURE_S",
            help="Seconds of steps to time before joining; more is surer on a busy machine.",
        ),
    ] = 1.8,
    tensor_parallel: node_rank.NumRanks = 1,
    rank_listen: node_rank.Listen = "",
    secret_file: node_rank.Secret = None,
    home: Home = None,
    limits: Limits = None,
    sets: Sets = None,
    offline: Annotated[
        bool,
        typer.Option(
            envvar=["PLAIT_OFFLINE", "HF_HUB_OFFLINE"],
            help="Weights from neighbours and this machine alone: no hub is asked.",
        ),
    ] = False,
    telemetry: Annotated[bool, typer.Option(help="Publish figures over MQTT.")] = True,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
) -> None:
    """Join a network and serve until stopped. Ctrl-C leaves in order; twice leaves at once."""
    needs("node")
    use_huge_pages()
    from node.agent.identity import node_home
    from node.config import NodeConfig
    from plait import log
    from plait.cli.node_run import end_process, run_node
    from plait.types import DType

    if coordinator.startswith(TOKEN_PREFIX):
        coordinator, token = "", token or coordinator
    if token is not None and token_file is not None:
        raise ConfigError("--token and --token-file: give one of them")
    if dtype not in _DTYPES:
        raise ConfigError(f"--dtype {dtype!r}: choose one of {', '.join(_DTYPES)}")
    if kv_dtype not in _KV_DTYPES:
        raise ConfigError(f"--kv-dtype {kv_dtype!r}: choose one of {', '.join(_KV_DTYPES)}")
    if weights not in _WEIGHTS:
        raise ConfigError(f"--weights {weights!r}: choose one of {', '.join(_WEIGHTS)}")
    log.configure(level=_log_level(log_level))
    home = home if home is not None else node_home()
    settings = owner_settings(home, limits, sets)
    config = NodeConfig(
        home=home,
        coordinator=coordinator,
        token=token,
        token_file=token_file,
        display_name=name,
        listen=parse_listen(listen),
        advertise=tuple(advertise or ()),
        memory_bytes=parse_bytes(memory) if memory is not None else None,
        num_threads=threads,
        device=allowed_device(device, settings),
        compute_dtype=None if dtype == "auto" else DType(dtype),
        weights=weights,
        kv_tokens_max=kv_tokens,
        kv_dtype=kv_dtype,
        chunks_prompts=chunk_prompts,
        drafts_max=draft_tokens,
        draft_model=draft_model,
        is_offline=offline,
        has_telemetry=telemetry,
        measure_s=measure_s,
        drain_ms=milliseconds(drain_s, flag="--drain-s"),
        tensor_parallel=tensor_parallel,
        rank_listen=node_rank.checked_listen(rank_listen, tensor_parallel, secret_file),
        secret_file=secret_file,
        owner=settings,
    )
    end_process(run_node(config))


def _log_level(text: str) -> str:
    if text.lower() not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"--log-level {text!r}: choose debug, info, warning or error")
    return text.lower()
