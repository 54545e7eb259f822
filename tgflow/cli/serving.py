"""What `tgflow serve` does: a run is opened, and answers until a signal comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tgflow.cli.continual import printer
from tgflow.cli.errors import INTERNAL, CliError
from tgflow.config import Config
from tgflow.runtime.files import read_health
from tgflow.runtime.metrics import RunCollector
from tgflow.runtime.saved_run import Run, open_run
from tgflow.runtime.serving import check_serving
from tgflow.runtime.stream import FlowControl, StopSignals
from tgflow.serve.server import Server

PORT = "8080"
_SECONDS = 1.0
"""Between two looks at whether the server lives."""


def serve_run(path: Path, config: Config) -> None:
    """Serve the run in `path` until a signal comes.

    Raises:
        CliError: If the server ended by itself.
    """
    at = PORT if config.serve.at is None else config.serve.at
    config = replace(config, serve=replace(config.serve, at=at))
    where = check_serving(config.serve)
    assert where is not None
    say, flow = printer(Console(stderr=True)), FlowControl()
    with StopSignals(flow.stop_for):
        run = open_run(path)
        name = run.config.model.name
        labels = {"model": name, "stream": run.config.stream.path, "run": str(run.path)}
        server = Server(
            run,
            *where,
            config.serve,
            name,
            registry=RunCollector(lambda: {"position": run.position}, labels).registry(),
            state=lambda: "serving",
            warn=lambda text: say(f"tgflow: {text}"),
        )
        with server:
            url = server.endpoint.url
            say(f"{name} of {run.path}, {run.position:,} events, answers at {url}")
            say(f"{url}/docs explains how to ask; Ctrl-C ends it{_note(run)}")
            while server.is_alive and not flow.stopped:
                flow.sleep(_SECONDS)
    if not flow.stopped:
        raise CliError("the server ended by itself: a fault in tgflow", INTERNAL)


def _note(run: Run) -> str:
    """Return what there is to know where the run goes on."""
    health = read_health(run.path / "health.json")
    if health is None or not health["alive"]:
        return ""
    return (
        f"\nanother process writes to {run.path}: answers stay as of event {run.position:,}; begin "
        "again for a newer checkpoint, or serve the run while it learns: tgflow run --serve"
    )
