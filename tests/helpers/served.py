"""Small models that are served."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import Any

import tgflow as tg
from helpers.made_models import X_DIM, made_events, made_model
from tgflow.base.units import parse_seconds
from tgflow.graph.ids import NodeIds
from tgflow.graph.tables import FeatureTable
from tgflow.run.config import StreamConfig
from tgflow.run.config.schema import ServeConfig
from tgflow.serve.endpoint import Endpoint, Serving
from tgflow.serve.predictor import Predictor
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


class Held:
    """A state that does not advance, and which `holding` keeps from answering.

    Args:
        predictor: Predictor of the state.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor, self.parameters = predictor, predictor.position
        self._lock, self._num_waiting = threading.Lock(), 0

    @contextmanager
    def holding(self) -> Any:
        """Context manager in which no turn of questions begins."""
        with self._lock:
            while not self._num_waiting:
                time.sleep(0.001)
            yield

    def advance(self) -> None:
        """Wait until the state is not held."""
        self._num_waiting += 1
        with self._lock:
            self._num_waiting -= 1


LIMITS = ("max_body", "max_pairs", "max_waiting")


class Served:
    """A server of a state in a thread of this process."""

    def __init__(
        self, state: Any, token: str | None, hosts: Any = (), at: str = "127.0.0.1", **limits: Any
    ) -> None:
        from prometheus_client import CollectorRegistry

        from tgflow.serve.answers import Answers
        from tgflow.serve.questions import Health
        from tgflow.serve.server import make_server

        self.state, self.faults = state, []
        self.behind = 0
        constants = {name: limits.pop(name) for name in LIMITS if name in limits}
        config = ServeConfig(**limits)
        for name, value in constants.items():
            object.__setattr__(config, name, value)
        listener = Endpoint("127.0.0.1", 0).listen()
        self.endpoint = Endpoint(at, listener.getsockname()[1])
        self.answers = Answers(state, config.max_pairs, self.faults.append)
        registry = CollectorRegistry()
        serving = Serving(
            "made",
            token,
            self.endpoint,
            hosts,
            config.max_body,
            config.max_waiting,
            parse_seconds(config.timeout),
            config.max_lag,
        )

        def health() -> Health:
            position = state.predictor.position
            return Health(
                position=position,
                parameters=state.parameters,
                state="following",
                behind=self.behind,
                age=0.0,
            )

        self._server = make_server(
            serving,
            self.answers,
            health,
            registry,
            registry,
            self.faults.append,
        )
        self._thread = threading.Thread(target=self._server.run, args=([listener],))
        self._thread.start()

    def close(self) -> None:
        """Answer what was asked, and end."""
        self._server.should_exit = True
        self._thread.join()
        self.answers.close()


@contextmanager
def served(predictor: Predictor, token: str | None = None, **limits: Any) -> Any:
    """Serve a predictor, which the attribute `state` can hold."""
    server = Served(Held(predictor), token, **limits)
    try:
        yield server
    finally:
        server.close()
