"""Small models that are served."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import tgflow as tg
from helpers.made_models import X_DIM, made_events, made_model
from tgflow.config import StreamConfig
from tgflow.config.schema import ServeConfig
from tgflow.ids import NodeIds
from tgflow.serve.endpoint import Endpoint
from tgflow.serve.predictor import Predictor
from tgflow.tables import FeatureTable
from tgflow.train.calibration import Calibration

NUM_NODES = 12


def made_ids() -> NodeIds:
    """Return ids of the nodes of `made_events`: n0, n1, ..."""
    ids = NodeIds()
    names = [f"n{i}" for i in range(NUM_NODES)]
    ids.encode(names[::2], names[1::2])
    return ids


def empty_graph() -> tg.TemporalGraph:
    """Return a graph for `made_events`, times in seconds."""
    return tg.TemporalGraph(edge_x=FeatureTable(X_DIM), time_unit="s")


def made_predictor(name: str = "tgn", size: int = 60) -> Predictor:
    """Return a predictor of a model that has seen some events."""
    graph = empty_graph()
    graph.append(made_events(size))
    model = made_model(name)
    engine = tg.Inference(model, graph)
    return Predictor("made", StreamConfig(), made_ids(), graph, engine, Calibration())


def live_predictor(name: str, batch_size: int = 20, **options: Any) -> tuple[Predictor, Any]:
    """Return a predictor of a new trainer, and the trainer."""
    model, graph = made_model(name), empty_graph()
    config = tg.ContinualConfig(batch_size=batch_size, seed=1)
    trainer = tg.ContinualTrainer(model, graph, config, **options)
    engine = tg.Inference(model, graph)
    predictor = Predictor("made", StreamConfig(), made_ids(), graph, engine, Calibration())
    predictor.follow(trainer, engine)
    return predictor, trainer


@contextmanager
def served(predictor: Predictor, token: str | None = None, warn: Any = None, **limits: Any) -> Any:
    """Serve a predictor; warnings go to `warn` or else to `faults` of the server."""
    from prometheus_client import CollectorRegistry

    from tgflow.serve.server import Server

    faults: list[str] = []
    server = Server(
        predictor,
        Endpoint("127.0.0.1", 0),
        token,
        ServeConfig(**limits),
        "made",
        registry=CollectorRegistry(),
        state=lambda: "running",
        warn=warn or faults.append,
    )
    server.faults = faults
    with server:
        yield server
