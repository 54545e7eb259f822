"""`tgflow serve`: what a run says, over HTTP."""

from __future__ import annotations

from tgflow.cli.options import with_config
from tgflow.cli.predict import RunPath
from tgflow.config import Config


@with_config(("serve",))
def serve(config: Config, *, run: RunPath) -> None:
    """Serve scores, rankings and embeddings of a run over HTTP.

    Without --serve it listens on port 8080 of this machine alone. POST /score, /top-k and
    /embedding take JSON, and many questions in one request; /docs explains them, /healthz says how
    the run is, /metrics is for Prometheus. Answers are those of tgflow predict and embed. Nothing
    in the run is changed, which may go on meanwhile: answers are as of the checkpoint that was the
    newest at the start. To serve a run while it learns, as of its last micro-batch: tgflow run
    --serve 8080.

    Ctrl-C or SIGTERM ends it once the requests that came are answered. On an address that other
    machines reach clients must show a token.

    [bold]Examples[/bold]

      tgflow serve runs/pay
      tgflow serve runs/pay --serve 9000
      tgflow serve runs/pay --serve 0.0.0.0:8080 --serve-token-file token.txt
      curl -H 'Content-Type: application/json' -d '{"src": ["acc_9"], "k": 3}' localhost:8080/top-k
    """
    from tgflow.cli.serving import serve_run

    serve_run(run, config)
