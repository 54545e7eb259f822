"""Node features of batches match a plain gather for any placement and arrival."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.effort import tries
from helpers.made_streams import made_events
from helpers.plans import assert_same_batch, plan_of
from tgflow import Batch, Loader, TemporalGraph
from tgflow.graph.cache import cached
from tgflow.graph.cache.contents import POLICIES
from tgflow.graph.tables import FeatureTable
from tgflow.graph.tables.table import Table
from tgflow.plan import BatchError, ExperienceReplay

EVENTS = made_events(120)
NODE_X = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))


def table_of(rows: Tensor, placement: Any = "host") -> FeatureTable:
    made = FeatureTable(rows.shape[1], placement=placement)
    made.append(rows)
    return made


@st.composite
def tables(draw: st.DrawFn, rows: Tensor) -> Table:
    """A table of `rows` in any placement, with any cache before it or none."""
    table = table_of(rows, draw(st.sampled_from(["auto", "disk"])))
    policy = draw(st.sampled_from([None, *POLICIES, "belady"]))
    capacity = draw(st.sampled_from([0, 1, 7, 1000]))
    return table if policy is None else cached(table, rows=capacity, policy=policy)


def assert_obvious(batch: Batch, expected: Batch, node_x: Tensor) -> None:
    assert batch.node_x is not None
    zeros = node_x.new_zeros(100, node_x.shape[1])
    assert torch.equal(batch.node_x, torch.cat([node_x, zeros])[batch.nodes])
    assert_same_batch(replace(batch, node_x=None), expected)


@settings(max_examples=tries(30))
@given(data=st.data())
def test_batches_contain_the_feature_rows_of_their_nodes(data: st.DataObject) -> None:
    node_x = NODE_X[: data.draw(st.integers(0, 32), "nodes with a row")]
    edge_x = data.draw(tables(torch.empty(0, 2)), "edges")
    graph = TemporalGraph.from_events(
        EVENTS, edge_x=edge_x, node_x=data.draw(tables(node_x), "nodes")
    )
    how = {
        "with_memory": data.draw(st.booleans()),
        "replay": data.draw(st.sampled_from([None, ExperienceReplay(0.5, 60)])),
        "fanouts": data.draw(st.sampled_from([(), (2,), (2, 2)])),
    }
    expected = plan_of(TemporalGraph.from_events(EVENTS), **how)
    lookahead = data.draw(st.sampled_from([1, 5, "auto"]), "lookahead")
    num_threads = data.draw(st.integers(0, 2), "threads")
    for epoch in range(2):
        batches = list(
            Loader(plan_of(graph, **how), epoch, lookahead=lookahead, num_threads=num_threads)
        )
        assert len(batches) == 12
        for batch in batches:
            assert_obvious(batch, expected.batch(epoch, batch.index), node_x)


def test_feature_rows_later_than_their_nodes_are_refused() -> None:
    graph = TemporalGraph(edge_x_dim=2, node_x=table_of(NODE_X[:5]))
    assert graph.node_x is not None
    graph.append(EVENTS)
    before = plan_of(graph)
    batch = before.batch(0, 3)
    graph.node_x.append(NODE_X[5:6])
    message = "has 6 rows now, but had 5 when an event came with node 5 or a later one; append the"
    with pytest.raises(ValueError, match=message):
        graph.append(EVENTS[-1:])
    with pytest.raises(ValueError, match=message):
        plan_of(graph)
    assert graph.num_events == 120
    assert_same_batch(batch, before.batch(0, 3))
    graph.node_x.truncate(5)
    graph.append(EVENTS[-1:])


@pytest.mark.parametrize("policy", ["lru", "belady"])
@pytest.mark.parametrize("name", ["edge_x", "node_x"])
def test_disk_failure_names_batch_and_table(name: str, policy: Any, tmp_path: Path) -> None:
    tables: dict[str, Table] = {"edge_x": FeatureTable(2), "node_x": table_of(NODE_X)}
    path = tmp_path / "x.rows"
    table = FeatureTable(tables[name].dim, placement="disk", path=path)
    if name == "node_x":
        table.append(NODE_X)
    graph = TemporalGraph.from_events(
        EVENTS, **tables | {name: cached(table, rows=4, policy=policy)}
    )
    table.sync()
    with path.open("r+b") as file:  # every row's first bytes, behind a page of header
        for row in range(len(table)):
            file.seek(4096 + row * (4 * table.dim + 4))
            file.write(b"\xff\xff\xff")
    with pytest.raises(BatchError, match=f"batch 0 of epoch 0 failed: {name} \\(disk\\): .*row"):
        list(Loader(plan_of(graph), num_threads=1))
