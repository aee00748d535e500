"""`plait model`: bring models to this machine, list, check and remove them."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from plait.cli.extras import needs
from plait.errors import ConfigError, ModelError, WeightsError

app = typer.Typer(help="Pull, list, verify, convert and remove models.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        help="A catalogue name, a Hugging Face repository (org/name\\[@revision] or "
        "org/name/file.gguf), or a local path.",
        show_default=False,
    ),
]


@app.command()
def pull(
    name: Name,
    layers: Annotated[
        str | None,
        typer.Option(help="Only what a node with these layers needs, e.g. 0-9; hub models only."),
    ] = None,
) -> None:
    """Bring a model to this machine; resumes, and is quick when it is here already."""
    needs("models")
    from plait import models
    from plait.cli.progress_bar import pull_bar

    source = models.resolve(name)
    console = Console()
    if layers is not None:
        _pull_layers(console, name, layers)
        return
    with pull_bar(console, name) as progress:
        pulled = models.pull(source, progress=progress)
    revision = f" at {pulled.revision[:12]}" if pulled.revision else ""
    console.print(
        f"[green]pulled[/] {escape(pulled.name)}{revision}, digest {(pulled.digest or '')[:12]}"
    )


@app.command("list")
def list_models() -> None:
    """What is on this machine, and what the catalogue offers."""
    needs("models")
    from plait import models
    from plait.config import models_dir

    table = Table("model", "state", "on disk", "of", "revision", "digest", box=None, pad_edge=False)
    pulled = models.list_pulled()
    for model in pulled:
        source = model.source
        table.add_row(
            escape(source.name),
            "[green]whole[/]" if model.is_whole else "[yellow]some layers[/]",
            size_text(model.disk_bytes),
            size_text(model.total_bytes),
            (source.revision or "-")[:12],
            (source.digest or "-")[:12],
        )
    here = {model.source.name for model in pulled}
    for offer in models.CATALOGUE.values():
        if offer.name not in here:
            table.add_row(
                offer.name, "[dim]not pulled[/]", "-", size_text(offer.file_bytes), "-", "-"
            )
    console = Console()
    console.print(table)
    console.print(f"[dim]in {escape(str(models_dir()))}[/]")


@app.command()
def verify(
    name: Annotated[str | None, typer.Argument(help="One model; all when left out.")] = None,
) -> None:
    """Read pulled models again and compare them with their recorded sha256."""
    needs("models")
    from plait import models
    from plait.cli.progress_bar import pull_bar

    console = Console()
    sources = (
        [models.resolve(name)]
        if name is not None
        else [model.source for model in models.list_pulled()]
    )
    if not sources:
        console.print("nothing is pulled")
    damaged: list[str] = []
    for source in sources:
        try:
            with pull_bar(console, source.name) as progress:
                report = models.verify(source, progress=progress)
        except WeightsError as error:
            damaged.append(error.message)
            continue
        console.print(
            f"[green]intact[/] {escape(source.name)}: {report.num_files} files, "
            f"{report.num_ranges} ranges, {size_text(report.checked_bytes)}"
        )
    if damaged:
        raise WeightsError("; ".join(damaged))


@app.command()
def rm(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a pulled model from this machine."""
    needs("models")
    from plait import models

    source = models.resolve(name)
    if not yes and not typer.confirm(f"Delete {source.name} from this machine?"):
        raise typer.Abort
    freed = models.remove(source)
    Console().print(f"[green]removed[/] {escape(source.name)}, {size_text(freed)} freed")


@app.command()
def quantize(
    name: Name,
    to: Annotated[
        str, typer.Option("--to", help="f16, bf16, q8_0, q5_0, q5_1, q4_0, q4_1 or f32.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The GGUF to write.")],
) -> None:
    """Write a GGUF in another element type, from a GGUF or a folder of safetensors."""
    needs("models")
    from plait import models
    from plait.cli.progress_bar import pull_bar
    from plait.models.quantizing import quantize_model

    console = Console()
    with pull_bar(console, name) as progress:
        written = quantize_model(models.resolve(name), out, to, progress=progress)
    console.print(
        f"[green]wrote[/] {escape(str(written.path))}: {size_text(written.num_bytes)}, from "
        f"{size_text(written.source_bytes)}, sha256 {written.sha256}",
        soft_wrap=True,
    )


def size_text(num_bytes: int) -> str:
    """Bytes for people, in powers of 1024."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _pull_layers(console: Console, name: str, layers: str) -> None:
    from plait import models
    from plait.cli.progress_bar import pull_bar
    from plait.types import LayerSpan, SourceKind

    source = models.resolve(name)
    if source.kind is not SourceKind.HUB:
        raise ModelError(f"{name} is not a hub's model: it can be pulled as a whole only")
    first, _, last = layers.partition("-")
    opened = models.open_source(models.pin(source))
    try:
        num_layers = opened.spec.num_layers
        if not (first.isdigit() and last.isdigit() and int(first) <= int(last) < num_layers):
            raise ConfigError(
                f"--layers is FIRST-LAST, from 0-0 to 0-{num_layers - 1}, not {layers!r}"
            )
        span = LayerSpan(int(first), int(last) + 1)
        names = models.span_tensor_names(opened.spec, span)
        with pull_bar(console, f"{name} {span}") as progress:
            models.prefetch(opened, names, lambda done, total: progress("downloading", done, total))
        console.print(
            f"[green]pulled[/] layers {span} of {escape(name)}: {size_text(opened.read_bytes)} of "
            f"{size_text(opened.total_bytes)}"
        )
    finally:
        opened.close()
