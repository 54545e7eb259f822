"""Benchmarks of batch preparation and of training."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from statistics import median
from typing import Any

import torch

from tgflow import _core
from tgflow.base.choices import Direction
from tgflow.cli.benchmarks.row import Params, Row
from tgflow.cli.benchmarks.setup import Options, restored_threads, seconds_of
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.graph.events import EventBatch
from tgflow.graph.tables import FeatureTable
from tgflow.models import TGAT, TGN
from tgflow.nn.groups import PAIR_GROUPS, numbers_of
from tgflow.plan.loader import Loader
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.train.config import ContinualConfig
from tgflow.train.step import TrainStep

X_DIM = 172
"""Width of the published features, which are not redistributed with the stream."""
BATCH_SIZE = 200
TURN = 25
"""Batches of one measurement."""
QUICK_EVENTS = 10_000
THREADS = 2

PREPARED: dict[str, tuple[dict[str, Any], float]] = {
    "TGN, 1 hop of 10": ({"with_memory": True}, 1e-3),
    "TGN, 1 hop of 10, pair features": (
        {"with_memory": True, "counts": numbers_of(PAIR_GROUPS)},
        6e-4,
    ),
    "TGAT, 2 hops of 10": ({"fanouts": (10, 10)}, 6e-3),
    "TGAT, 2 hops of 10, uniform": ({"fanouts": (10, 10), "strategy": "uniform"}, 6e-3),
}
"""Settings of a plan, and the target in seconds for a batch without features."""


def prepare(options: Options) -> list[Row]:
    """Measure the preparation of batches of 200 events and random negatives on one thread."""
    with restored_threads():
        _core.set_num_threads(1)
        _, events = options.wikipedia()
        x = torch.randn(len(events), X_DIM, generator=torch.Generator().manual_seed(0))
        return [
            prepare_row(graph, name, options.rounds)
            for graph in map(TemporalGraph.from_events, (events, replace(events, x=x)))
            for name in PREPARED
        ]


def prepare_row(graph: TemporalGraph, name: str, rounds: int) -> Row:
    """Measure the preparation of every fourth batch of the second half; the best round counts."""
    changes, limit_s = PREPARED[name]
    settings: dict[str, Any] = {"fanouts": (10,), "strategy": "recent", "with_memory": False}
    plan = Plan(
        graph,
        seed=0,
        batch_size=BATCH_SIZE,
        visibility="event",
        negatives=NegativeSampler(random=1),
        **settings | changes,
    )
    indices = range(len(plan) // 2, len(plan) - 1, 4)
    best = min(
        seconds_of(lambda: [plan.batch(0, index) for index in indices]) for _ in range(rounds)
    )
    x_dim = 0 if graph.edge_x is None else graph.edge_x.dim
    params: Params = {"batch": BATCH_SIZE, "x_dim": x_dim, "threads": 1}
    target = None if x_dim else BATCH_SIZE / limit_s
    return Row(f"prepare, {name}", BATCH_SIZE * len(indices) / best, "events/s", params, target)


def set_threads() -> None:
    torch.set_num_threads(THREADS)
    _core.set_num_threads(THREADS)


def training_events(options: Options, limit: int | None = None) -> tuple[str, EventBatch]:
    """Return name and events of the standard stream, with standard normal edge features.

    `options.events`, else with `quick` `QUICK_EVENTS`, else `limit` is the number of events.
    """
    name, events = options.wikipedia()
    events = events[: options.events or (QUICK_EVENTS if options.quick else limit)]
    x = torch.randn(len(events), X_DIM, generator=torch.Generator().manual_seed(0))
    return name, replace(events, x=x)


def train(options: Options) -> list[Row]:
    """Train TGN and TGAT once over the stream; `quick` takes its first 10,000 events only."""
    name, events = training_events(options)
    params: Params = {"stream": name, "events": len(events), "threads": THREADS}
    params["visibility"] = "batch"
    rows = []
    with restored_threads():
        set_threads()
        for device in options.devices:
            for model, kind in (("TGN", TGN), ("TGAT", TGAT)):
                options.say(f"train: {model} on {device}")
                speed = train_speed(kind, events, device)
                rows.append(
                    Row(f"{model} training", speed, "events/s", params | {"device": device})
                )
    return rows


def train_speed(kind: type[TGN] | type[TGAT], events: EventBatch, device: str) -> float:
    """Train a model on all events; return the median events per second of turns but the first."""
    graph = graph_on(device, events.x_dim, "undirected")
    graph.append(events)
    torch.manual_seed(0)
    model = kind.for_graph(graph, time_dim=100, embedding_dim=100, neighbors=10, pair_features=())
    plan = Plan.for_model(model, graph, batch_size=BATCH_SIZE, visibility="batch")
    config = ContinualConfig(learning_rate=1e-4)
    step = TrainStep(model.to(graph.device), config, num_nodes=lambda: graph.num_nodes)
    batches = iter(Loader(plan, num_threads=1, captures=plan.gpu is not None))

    def turn() -> None:
        for batch in islice(batches, TURN):
            step.commit(batch, step.learn(batch).scores)

    num_turns = max(1, len(events) // (TURN * BATCH_SIZE))  # each of full batches
    seconds = [seconds_of(turn, graph.device.type) for _ in range(num_turns)]
    return TURN * BATCH_SIZE / median(seconds[1:] or seconds)


def graph_on(device: str | Device, x_dim: int, direction: Direction = "bipartite") -> TemporalGraph:
    """Return an empty graph on a device, which has the edge features in its own memory."""
    features = None
    if not isinstance(device, str) or device != "cpu":
        features = FeatureTable(x_dim, placement="device", device=device)
    return TemporalGraph(direction, x_dim, edge_x=features, device=device)
