"""`tgflow serve`: serve a run over HTTP until a signal arrives."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from tgflow.cli.errors import INTERNAL, CliError
from tgflow.cli.options import with_config
from tgflow.cli.predict import RunPath
from tgflow.config import Config

PORT = "8080"
CHECK_SECONDS = 1.0
"""Seconds between two checks that the server is alive."""


@with_config(("serve",))
def serve(config: Config, *, run: RunPath) -> None:
    """Serve scores, rankings and embeddings of a run over HTTP.

    Without --serve it listens on port 8080 of this machine only. POST /score, /top-k and
    /embedding take JSON, with many queries in one request; /docs describes them, /healthz returns
    the state of the run, /metrics is for Prometheus. Answers are those of tgflow predict and embed.
    The run is not modified and may continue meanwhile; answers use the checkpoint that was the
    latest at the start. To serve a run while it learns, as of its last micro-batch, use tgflow run
    --serve 8080.

    Ctrl-C or SIGTERM stops it after all open requests are answered. On an address that other
    machines can reach, clients must show a token.

    [bold]Examples[/bold]

      tgflow serve runs/pay
      tgflow serve runs/pay --serve 9000
      tgflow serve runs/pay --serve 0.0.0.0:8080 --serve-token-file token.txt
      curl -H 'Content-Type: application/json' -d '{"src": ["acc_9"], "k": 3}' localhost:8080/top-k
    """
    from tgflow.cli.assemble import printer
    from tgflow.runtime.files import read_health
    from tgflow.runtime.metrics import RunCollector
    from tgflow.runtime.saved_run import open_run
    from tgflow.runtime.serving import check_serving
    from tgflow.runtime.stream import FlowControl, StopSignals
    from tgflow.serve.server import Server

    serving = replace(config.serve, at=PORT) if config.serve.at is None else config.serve
    where = check_serving(serving)
    assert where is not None
    say, flow = printer(Console(stderr=True)), FlowControl()
    with StopSignals(flow.stop_for):
        opened = open_run(run)
        name, position = opened.config.model.name, opened.position
        labels = {"model": name, "stream": opened.config.stream.path, "run": str(run)}
        server = Server(
            opened,
            *where,
            serving,
            name,
            registry=RunCollector(lambda: {"position": position}, labels).registry(),
            state=lambda: "serving",
            warn=lambda text: say(f"tgflow: {text}"),
        )
        with server:
            url = server.endpoint.url
            say(f"{name} of {run}, {position:,} events, answers at {url}")
            say(f"{url}/docs documents the API; Ctrl-C stops it")
            health = read_health(run / "health.json")
            if health is not None and health["alive"]:
                say(
                    f"another process writes to {run}: answers remain as of event {position:,}; "
                    "restart for a newer checkpoint, or serve the run during training: tgflow "
                    "run --serve"
                )
            while server.is_alive and not flow.stopped:
                flow.sleep(CHECK_SECONDS)
    if not flow.stopped:
        raise CliError("the server ended unexpectedly: a fault in tgflow", INTERNAL)
