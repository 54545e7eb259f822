"""Plans without a frontier: the same events, negatives and counts, and no rows of nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers.plan_reference import assert_same_batch, batch_starts
from helpers.plan_variants import made_events, plan_of, spec_of
from tgflow.batch import Batch
from tgflow.counts import Count
from tgflow.graph import TemporalGraph
from tgflow.plan.loader import Loader
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.plan.replay import ExperienceReplay
from tgflow.tables import FeatureTable

VARIANTS: list[dict[str, Any]] = [
    {},
    {"with_memory": False, "start": 13},
    {"visibility": "batch", "negatives": NegativeSampler("historical", 3)},
    {"replay": ExperienceReplay(0.7, 60, 20.0), "with_memory": False},
    {"only": torch.arange(3, 57, 2), "negatives": NegativeSampler(num=20)},
]
ROWS = ("src_row", "dst_row", "negative_src_row", "negative_dst_row", "nodes", "position", "node_x")


def assert_without(found: Batch, expected: Batch, plan: Plan) -> None:
    """Fail unless `found` is `expected` but for what is of nodes."""
    m = expected.negative_dst.shape[1]
    assert found.src_row.shape == found.dst_row.shape == (0,)
    assert found.negative_src_row.shape == found.negative_dst_row.shape == (0, m)
    assert len(found.nodes) == 0
    assert found.node_x is not None
    assert found.node_x.shape == (0, 2)
    starts = batch_starts(spec_of(plan), found.eid.tolist())
    if plan.only is not None:
        starts = [found.host.begin] * len(found)
    assert found.position.tolist() == starts
    rows = {name: getattr(expected, name) for name in ROWS}
    assert_same_batch(replace(found, **rows), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_the_batch_that_it_would_be_but_for_nodes(variant: dict[str, Any]) -> None:
    node_x = FeatureTable(2)
    node_x.append(torch.rand(9, 2, generator=torch.Generator().manual_seed(0)))
    graph = TemporalGraph.from_events(made_events(60), node_x=node_x)
    counts = (Count("pair"), Count("dst", half_life=7.0))
    without, whole = (
        plan_of(graph, fanouts=(), counts=counts, with_nodes=with_nodes, **variant)
        for with_nodes in (False, True)
    )
    for batch, expected in zip(Loader(without, 1), Loader(whole, 1), strict=True):
        assert_without(batch, expected, without)


def test_neighbors_of_no_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"fanouts are neighbors of nodes, got \(3,\)"):
        plan_of(TemporalGraph(), with_nodes=False)
