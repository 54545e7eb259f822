"""Small models of every name, and the plans and scores that tests ask of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.models import MODELS
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.tables import FeatureTable
from tgflow.train.config import ContinualConfig
from tgflow.train.plans import make_plan

SMALL = {
    "memory_dim": 8,
    "time_dim": 8,
    "embedding_dim": 8,
    "neighbors": 4,
    "dropout": 0.0,
    "table_size": 64,
    "channel_dim": 4,
    "length": 6,
    "walk_dim": 16,
}
"""Settings of small models, each for those that have it."""
X_DIM = 2
NAMES = [name for name in MODELS if name == "tgn+pairs" or not name.endswith("+pairs")]
"""Every model of a paper, and the default one."""


def made_model(name: str, **settings: Any) -> Any:
    """Return a small model of two edge features, the same at every call."""
    entry = MODELS[name]
    known = {field.name for field in dataclasses.fields(entry.config)}
    wanted = {"edge_x_dim": X_DIM, **SMALL}
    small = {key: value for key, value in wanted.items() if key in known}
    small |= entry.settings
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return entry.model(entry.config(**small | settings))


def has_parameters(name: str) -> bool:
    """Whether there is anything to learn."""
    return any(True for _ in made_model(name).parameters())


def made_events(size: int, *, num_nodes: int = 12, seed: int = 0) -> EventBatch:
    """A stream in which sources keep coming back to a few destinations, with ties in time."""
    generator = torch.Generator().manual_seed(seed)
    half = num_nodes // 2
    src = torch.randint(half, (size,), generator=generator)
    dst = half + (src + torch.randint(2, (size,), generator=generator)) % half
    x = torch.randn(size, X_DIM, generator=generator)
    return EventBatch(src, dst, torch.arange(size) // 3 * 7, x)


def changed(events: EventBatch, **columns: Tensor) -> EventBatch:
    """Return the stream with other columns."""
    return dataclasses.replace(events, **columns)


def plan_for(
    model: TemporalModel,
    events: EventBatch,
    *,
    batch_size: int = 20,
    num_negatives: int = 2,
    visibility: str = "event",
    slices: int = 1,
    **options: Any,
) -> Plan:
    """Return the plan of a stream that trainers would make for `model`."""
    table = FeatureTable(X_DIM)
    graph = TemporalGraph("undirected", edge_x=table)
    graph.append(events)
    how: Any = {"batch_size": batch_size, "visibility": visibility, "slices": slices}
    config = ContinualConfig(**how)
    return make_plan(graph, model, config, NegativeSampler(num=num_negatives), seed=3, **options)


def batches_of(plan: Plan, epoch: int = 0) -> Iterator[Batch]:
    """Yield the batches of a plan in order."""
    return (plan.batch(epoch, index) for index in range(len(plan)))


@torch.no_grad()
def scores_of(model: TemporalModel, batches: Any) -> list[Tensor]:
    """Score batches in order in evaluation mode, each from what came before: `[B, 1 + m]` each."""
    model.eval()
    if model.state is not None:
        model.state.reset()
    found = []
    for batch in batches:
        scores = model(batch)
        found.append(torch.cat([scores.positive.unsqueeze(1), scores.negative], dim=1))
        model.commit(batch, scores)
    return found
