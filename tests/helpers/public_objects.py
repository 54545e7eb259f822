"""One object of every public class that has some, small."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch

import tgflow as tg
from helpers.made_streams import made_events
from tgflow.checkpoint.parts import Ids
from tgflow.config import load_config
from tgflow.models import MODELS
from tgflow.nn import NodeMemory
from tgflow.runtime.model_maker import make_model

WIDTHS = {"memory_dim": 8, "time_dim": 8, "embedding_dim": 8, "neighbors": 3}
X_DIM = 2


def public_classes() -> dict[str, type]:
    """Return the public classes of which there are objects: no protocols, and no errors."""
    return {
        name: kind
        for name in tg.__all__
        if inspect.isclass(kind := getattr(tg, name))
        and not issubclass(kind, BaseException)
        and not getattr(kind, "_is_protocol", False)
        and not inspect.isabstract(kind)
    }


def public_objects() -> dict[str, Any]:
    """Return an object of each of `public_classes`, by its name."""
    events = made_events(60, x_dim=X_DIM)
    graph = tg.TemporalGraph.from_events(events)
    return (
        _of_models(graph) | _of_the_graph(graph) | _of_plans(graph) | _of_trainers(graph) | _run()
    )


def _of_models(graph: tg.TemporalGraph) -> dict[str, Any]:
    """Models and their settings, each with the widths that it has."""
    made: dict[str, Any] = {}
    for kind in (entry.model for entry in MODELS.values()):
        known = kind.config_type.__dataclass_fields__
        model = kind.for_graph(graph, **{name: x for name, x in WIDTHS.items() if name in known})
        made[kind.__name__] = model
        if kind.config_type.__name__ in tg.__all__:
            made[kind.config_type.__name__] = model.config
    return made | {"TemporalModel": made["TGN"], "Callback": tg.Callback()}


def _of_the_graph(graph: tg.TemporalGraph) -> dict[str, Any]:
    nodes, t = torch.tensor([0, 1, 2]), torch.tensor([2_000_000_000] * 3)
    ids = tg.NodeIds()
    ids.encode(["ann", "bob"], ["cy", "di"])
    table = tg.tables.FeatureTable.from_tensor(torch.randn(8, 3))
    peers = tg.join()
    return {
        "CachedTable": tg.cache.cached(table, rows=4),
        "Count": tg.counts.Count("pair"),
        "Counts": tg.counts.Counts(torch.tensor([[1, 0]]), torch.tensor([[7, -1]]), None),
        "EventBatch": graph.log.read(0, 60),
        "EventLog": graph.log,
        "FeatureScale": tg.graph.FeatureScale(),
        "FeatureTable": table,
        "Hops": tg.sample_hops(graph, nodes, t, [3, 2]),
        "Neighbors": tg.sampling.recent_neighbors(graph, nodes, t, 3),
        "NodeFeatures": tg.NodeFeatures({"id": ["ann", "bob"], "age": [31, 47]}),
        "NodeIds": ids,
        "Sampler": tg.Sampler.window(width=60),
        "ShardedMemory": tg.distributed.ShardedMemory(NodeMemory(8, 8), peers),
        "TemporalGraph": graph,
    }


def _of_plans(graph: tg.TemporalGraph) -> dict[str, Any]:
    model = tg.TGN.for_graph(graph, **WIDTHS).eval()
    negatives, replay = tg.plan.NegativeSampler(num=2), tg.plan.ExperienceReplay(ratio=0.5)
    plan = tg.Plan.for_model(model, graph, batch_size=20, negatives=negatives, replay=replay)
    batch = plan.batch(0, 1)
    scores = model(batch)
    engine = tg.Inference(model, graph)
    return {
        "Batch": batch,
        "ExperienceReplay": replay,
        "Inference": engine,
        "Loader": tg.Loader(plan),
        "Messages": model.messages(batch, scores),
        "NegativeSampler": negatives,
        "NewEvents": tg.messages.NewEvents.of(batch),
        "Plan": plan,
        "Ranking": tg.inference.Ranking(torch.tensor([[4, 3]]), torch.tensor([[0.5, -1.0]])),
        "ScoredPairs": tg.serve.ScoredPairs(
            ["<b>", "c"], ["d", "e"], torch.tensor([0.5, 1.0]), *torch.rand(2, 2).double()
        ),
        "Scores": scores,
    }


def _of_trainers(graph: tg.TemporalGraph) -> dict[str, Any]:
    config = tg.ContinualConfig(batch_size=20)
    trainer = tg.ContinualTrainer(
        tg.TGN.for_graph(graph, **WIDTHS), tg.TemporalGraph(edge_x_dim=X_DIM), config
    )
    trainer.run([made_events(40, x_dim=X_DIM)])
    entrant = tg.compare.Entrant("tgn", 0, tg.TGN.for_graph(graph, **WIDTHS))
    task = tg.tasks.TaskConfig(kind="edge", target="is_fraud")
    return {
        "Checkpoint": trainer.checkpoint(),
        "Comparison": tg.compare.Comparison([entrant], tg.TemporalGraph(edge_x_dim=X_DIM), config),
        "ContinualConfig": config,
        "ContinualTrainer": trainer,
        "Entrant": entrant,
        "LabelTask": tg.tasks.LabelTask(task),
        "OfflineConfig": tg.OfflineConfig(),
        "OfflineTrainer": tg.OfflineTrainer(tg.TGN.for_graph(graph, **WIDTHS), graph),
        "Reuse": tg.train.Reuse(),
        "TaskConfig": task,
    }


def _run() -> dict[str, Any]:
    """A run that was opened, without its directory."""
    config = load_config(flags={"stream.path": "pay.csv", "model.dim": 8, "model.neighbors": 3})
    source = tg.open_stream({"src": ["a", "b"], "dst": ["c", "c"], "t": [1, 2]})
    model = make_model(config, config.continual, 0)
    trainer = tg.ContinualTrainer(model, tg.TemporalGraph(), config.continual)
    trainer.run(source)
    checkpoint = trainer.checkpoint()
    Ids(source.ids).save(checkpoint)
    return {"Run": tg.runtime.Run(Path("runs/pay"), config, checkpoint)}
