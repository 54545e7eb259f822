"""The commands, and their common options."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from tgflow.cli import compare, convert, errors, forget, info, predict, run, score, serve, train
from tgflow.cli.options import LongCommand, help_text

app = typer.Typer(
    name="tgflow",
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Continual learning on temporal graphs: from a stream of timed edges to a model that "
        "keeps learning.\n\n"
        "[bold]Start here[/bold]\n\n"
        "  tgflow run --stream examples/data/collegemsg.csv.gz\n\n"
        "This learns from the stream as it arrives and writes a report. `tgflow COMMAND --help` "
        "shows examples for each command."
    ),
    epilog=(
        f"Exit codes: {errors.table()}. `--traceback` with any command (or TGFLOW_TRACEBACK=1) "
        "shows the traceback of an error."
    ),
)


def _version(wanted: bool) -> None:
    """Print the version, and what a report of a bug needs."""
    if not wanted:
        return
    typer.echo(f"tgflow {version('tgflow-learn')}")
    import torch

    from tgflow.base import _native
    from tgflow.cuda.requirements import CudaError, driver_version, require_cupy
    from tgflow.run.machine import num_cores

    try:
        cupy = require_cupy(torch.device("cuda")).__version__
        names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
        gpu = f"{', '.join(names)}; driver {driver_version()}, CuPy {cupy}"
    except CudaError as error:
        gpu = f"none: {error}"
    typer.echo(
        f"python  {platform.python_version()}, {platform.platform()}\n"
        f"torch   {torch.__version__}, {torch.get_num_threads()} threads\n"
        f"pyarrow {version('pyarrow')}\n"
        f"core    {_native.simd_level()}, {_native.num_threads()} threads of {num_cores()} cores, "
        f"reads files by {_native.probe_reads(_native.CORE_FILE)}\n"
        f"gpu     {gpu}"
    )
    raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Hold the options that precede a command."""


LEARN, ASK, LOOK = "Train", "Inference", "Data and diagnostics"
COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    LEARN: {"run": run.run, "train": train.train, "compare": compare.compare},
    ASK: {
        "predict": predict.predict,
        "explain": predict.explain,
        "embed": predict.embed,
        "score": score.score,
        "serve": serve.serve,
    },
    LOOK: {"info": info.info, "forget": forget.forget, "convert": convert.convert},
}
for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        epilog = f"Exit codes: {errors.table()}." if name == "run" else None
        kind = LongCommand if panel == LEARN else None
        text = help_text(command)
        app.command(name, cls=kind, help=text, epilog=epilog, rich_help_panel=panel)(command)
