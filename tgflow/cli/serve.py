"""`tgflow serve`: serve a run over HTTP until a signal arrives."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from tgflow.cli.errors import INTERNAL, CliError
from tgflow.cli.options import OwnModel, given_model, with_config
from tgflow.cli.predict import RunPath
from tgflow.run.config import Config

PORT = "8080"
CHECK_SECONDS = 1.0
"""Seconds between two checks that replicas are kept."""


@with_config(("serve",))
def serve(config: Config, *, run: RunPath, model: OwnModel = None) -> None:
    """Serve scores, rankings and embeddings of a run over HTTP.

    Without --serve it listens on port 8080 of this machine only. POST /score, /top-k, /embedding,
    /neighbors and /explain take JSON, with many queries in one request; GET /alerts lists the
    latest alerts (--alert-budget); /docs describes them, / is a page to try them, /ready and
    /healthz tell how far behind the run answers are, /metrics is for Prometheus. Answers are those
    of tgflow predict and embed. The run is not modified and may continue meanwhile, also on another
    host with the same directory: answers include the events that it has logged, with the parameters
    of its newest checkpoint. To serve a run with all that it has learned, use tgflow run --serve
    8080.

    Ctrl-C or SIGTERM stops it after all open requests are answered. On an address that other
    machines can reach, clients must show a token.

    [bold]Examples[/bold]

      tgflow serve runs/pay
      tgflow serve runs/pay --serve 9000 --replicas 2
      tgflow serve runs/pay --serve 0.0.0.0:8080 --set serve.token_file=token.txt
      curl -H 'Content-Type: application/json' -d '{"src": ["acc_9"], "k": 3}' localhost:8080/top-k
    """
    from tgflow.cli.inputs import printer
    from tgflow.run.model_maker import model_class
    from tgflow.run.saved import find_checkpoint, saved_config
    from tgflow.run.serving import Replicas, check_serving
    from tgflow.run.stream import FlowControl, StopSignals

    serving = replace(config.serve, at=PORT) if config.serve.at is None else config.serve
    where = check_serving(serving)
    assert where is not None
    say, flow = printer(Console(stderr=True)), FlowControl()
    with StopSignals(flow.stop_for):
        home, found = find_checkpoint(run)
        name = saved_config(home, found).model.name
        model_class(name, given_model(model))
        warn = lambda text: say(f"tgflow: {text}")  # noqa: E731
        with Replicas(run, serving, name, where, None, warn, model) as replicas:
            url, position = replicas.endpoint.url, found.meta.get("position", 0)
            say(f"{name} of {run}, {position:,} events, answers at {url}")
            say(f"{url}/docs documents the API; Ctrl-C stops it")
            while replicas.is_alive and not flow.stopped:
                flow.sleep(CHECK_SECONDS)
            if replicas.failure is not None:
                raise replicas.failure
    if not flow.stopped:
        raise CliError("the server ended unexpectedly: a fault in tgflow", INTERNAL)
