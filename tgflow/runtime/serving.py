"""Serve a run over HTTP: during training, or from its saved state."""

from __future__ import annotations

from contextlib import ExitStack

from rich.console import Console

from tgflow.config import ConfigError
from tgflow.config.schema import ServeConfig
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.log import RunLog
from tgflow.runtime.metrics import RunCollector, RunMetrics
from tgflow.runtime.saved_run import make_engine
from tgflow.serve.endpoint import Endpoint, read_token
from tgflow.serve.predictor import Predictor
from tgflow.serve.server import Server, check_installed
from tgflow.streams.ingest.ingest import Ingest
from tgflow.train.calibration import Calibration
from tgflow.train.continual import ContinualTrainer
from tgflow.train.stream_trainer import StreamTrainer


def check_serving(serve: ServeConfig) -> tuple[Endpoint, str | None] | None:
    """Return the endpoint of a run and its token; None if it is not served."""
    if serve.at is None:
        return None
    try:
        endpoint = Endpoint.parse(serve.at)
        token = read_token(endpoint, serve.token_file)
    except ValueError as error:
        raise ConfigError(f"--serve: {error}") from None
    check_installed()
    return endpoint, token


def serve_answers(
    directory: RunDirectory,
    trainer: StreamTrainer,
    ingest: Ingest,
    metrics: RunMetrics,
    collector: RunCollector,
    run_log: RunLog,
    console: Console,
    opened: ExitStack,
) -> None:
    config = directory.config
    where = check_serving(config.serve)
    if where is None or not isinstance(trainer, ContinualTrainer):
        return
    engine = make_engine(config.continual, trainer.model, trainer.graph)
    predictor = Predictor(
        str(directory.path),
        config.stream,
        ingest.ids,
        trainer.graph,
        engine,
        Calibration(),
        lambda: ingest.classes.get("relation", ()),
    )
    predictor.follow(trainer, engine)
    server = Server(
        predictor,
        *where,
        config.serve,
        config.model.name,
        registry=collector.registry(),
        state=lambda: metrics.state,
        warn=lambda text: run_log.warning("serve", text),
    )
    opened.callback(server.close)
    url = server.endpoint.url
    text = f"answers at {url}, documented at {url}/docs"
    run_log.info("serve", text, port=server.endpoint.port)
    if config.operate.log_format == "text":
        console.print(text, markup=False, highlight=False, soft_wrap=True)
