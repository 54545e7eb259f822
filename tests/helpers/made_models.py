"""Small models of every name, with plans and scores for tests."""

import dataclasses

from helpers.made_streams import seeded
from tgflow import TemporalGraph
from tgflow.graph.tables import FeatureTable
from tgflow.models import MODELS
from tgflow.testing.check_model import batches_of, made_events, made_plan, scores_of  # noqa: F401

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


def made_model(name, **settings):
    """Return a small model of two edge features, the same at every call."""
    entry = MODELS[name]
    known = {field.name for field in dataclasses.fields(entry.config)}
    wanted = {"edge_x_dim": X_DIM, **SMALL}
    small = {key: value for key, value in wanted.items() if key in known}
    small |= entry.settings
    return seeded(lambda: entry.model(entry.config(**small | settings)))


def has_parameters(name):
    """Whether the model has parameters."""
    return any(True for _ in made_model(name).parameters())


def changed(events, **columns):
    """Return the stream with other columns."""
    return dataclasses.replace(events, **columns)


def plan_for(model, events, **options):
    """Return the plan of a stream that trainers would make for `model`."""
    graph = TemporalGraph("undirected", edge_x=FeatureTable(X_DIM))
    graph.append(events)
    return made_plan(model, graph, **options)
