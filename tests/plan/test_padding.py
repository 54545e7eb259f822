"""Padding has no effect on training, up to rounding of sums."""

from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from helpers.effort import cases, tries
from helpers.made_streams import made_events
from helpers.plans import pad, plan_of
from tgflow import Batch, Plan, Scores, TemporalGraph, TemporalModel
from tgflow.graph.tables import FeatureTable
from tgflow.models import MODELS
from tgflow.nn import DropoutKeys
from tgflow.plan import ExperienceReplay
from tgflow.plan.padding import BatchShape, shape_of

SETTINGS = {"time_dim": 8, "embedding_dim": 8, "neighbors": 3, "dropout": 0.0, "table_size": 16}
VARIANTS: list[dict[str, Any]] = [
    {"layers": 1},
    {"layers": 2},
    {"layers": 2, "aggregator": "mean", "memory_updater": "rnn"},
]


def model_of(name: str, graph: TemporalGraph, settings: dict[str, Any]) -> TemporalModel:
    torch.manual_seed(0)
    entry = MODELS[name]
    known = entry.config.__dataclass_fields__
    wanted = {**SETTINGS, **settings, **entry.settings}
    given = {name: value for name, value in wanted.items() if name in known}
    model = entry.model.for_graph(graph, **given)
    if model.state is not None:
        model.state.keep_past(1000)
    return model


def planned(model: TemporalModel, graph: TemporalGraph) -> Plan:
    return plan_of(
        graph,
        fanouts=model.fanouts,
        strategy="recent",
        replay=ExperienceReplay(ratio=0.5),
        with_memory=model.state is not None,
        counts=model.counts,
    )


def learn(model: TemporalModel, batch: Batch) -> tuple[Scores, dict[str, Tensor]]:
    """Return the scores and gradients of a batch, and store it."""
    model.zero_grad()
    with DropoutKeys(model).keyed(3):
        scores = model(batch)
    if any(True for _ in model.parameters()):
        (F.softplus(-scores.positive).mean() + F.softplus(scores.negative).mean()).backward()
    model.commit(batch, scores)
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return scores, {name: one.clone() for name, one in gradients.items()}


def longer(shape: BatchShape, more: list[int]) -> BatchShape:
    targets = tuple(size + more[0] for size in shape.targets)
    return BatchShape(targets, shape.nodes + more[1], shape.edges + (more[2] if shape.edges else 0))


def graph_with_features(x_dim: int, node_x_dim: int) -> TemporalGraph:
    node_x = FeatureTable(node_x_dim) if node_x_dim else None
    if node_x is not None:
        node_x.append(torch.rand(9, node_x_dim, generator=torch.Generator().manual_seed(1)))
    return TemporalGraph.from_events(made_events(80, x_dim=x_dim), node_x=node_x)


@pytest.mark.parametrize("name", cases(MODELS, MODELS.keys() - {"dygformer"}))
@pytest.mark.parametrize("settings", cases(VARIANTS, VARIANTS[1:2]))
@hypothesis.settings(max_examples=tries(60, 3))
@given(more=st.lists(st.integers(0, 40), min_size=3, max_size=3), features=st.booleans())
def test_padding_changes_no_scores_or_gradients(
    name: str, settings: dict[str, Any], more: list[int], features: bool
) -> None:
    graph = graph_with_features(3, 2) if features else graph_with_features(0, 0)
    plain, padded = model_of(name, graph, settings), model_of(name, graph, settings)
    plan = planned(plain, graph)
    for index in range(4):
        batch = plan.batch(0, index)
        scores, gradients = learn(plain, batch)
        found, of_padded = learn(padded, pad(batch, longer(shape_of(batch), more)))
        torch.testing.assert_close(found.positive, scores.positive)
        torch.testing.assert_close(found.negative, scores.negative)
        torch.testing.assert_close(of_padded, gradients)
    if plain.state is not None and padded.state is not None:
        torch.testing.assert_close(padded.state.state_dict(), plain.state.state_dict())


@given(rows=st.integers(1, 1 << 40))
def test_padding_is_at_most_half_of_a_small_size_and_a_third_of_a_large_one(rows: int) -> None:
    size = BatchShape((rows,), rows, rows).rounded()
    assert size == BatchShape((size.nodes,), size.nodes, size.nodes)
    most = 2 if rows <= 8192 else 1.5
    assert size.nodes == 64 or rows <= size.nodes <= most * rows
    assert size.rounded() == size
    sizes = ("1",) if rows <= 8192 else ("1", "11")
    assert bin(size.nodes).lstrip("0b").rstrip("0") in sizes, "one size an octave, then two"
