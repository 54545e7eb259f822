"""Features of nodes in trainers and checkpoints: they go on to equal bits, or are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tgflow as tg
from helpers.effort import slow
from helpers.made_streams import small_tgn
from tgflow import checkpoint as ckpt
from tgflow.events import concat
from tgflow.streams.errors import SourceMismatch

NUM = 300


def made():
    """Return a stream among 40 accounts, and a table of their features, of which some are large."""
    g = torch.Generator().manual_seed(2)
    src, dst = torch.randint(40, (2, NUM), generator=g).tolist()
    names = [f"acc_{i}" for i in range(40)]
    x = torch.exp(3 * torch.randn(45, 2, generator=g))
    table = {"id": [*names, *(f"other_{i}" for i in range(5))][::-1], "x": x.numpy()}
    return ([names[i] for i in src], [names[i] for i in dst], list(range(NUM))), table


def trainer_of(scale=None):
    scale = None if scale is None else tg.graph.FeatureScale(scale, freeze_at=25)
    graph = tg.TemporalGraph(node_x=tg.tables.FeatureTable(2), feature_scale=scale)
    config = tg.ContinualConfig(batch_size=20, learning_rate=1e-2, mrr_negatives=3)
    return tg.ContinualTrainer(small_tgn(edge_x_dim=0, node_x_dim=2), graph, config)


def state_of(trainer):
    table = trainer.graph.node_x
    return [x.tolist() for x in trainer.model.state_dict().values()], table.read(
        0, len(table)
    ).tolist()


def stopped_at(cut, stream, nodes, scale, path):
    """Save a trainer after `cut` events, with more of them in its graph."""
    trainer = trainer_of(scale)
    for record in trainer.steps(nodes.along(stream)):
        if record.stop == cut:
            break
    ckpt.save(path, trainer.checkpoint())
    return ckpt.load(path), stream.ids


@pytest.mark.parametrize("scale", ["auto", slow(None), slow("standard")])
@pytest.mark.parametrize("cut", [20, slow(160), slow(280)])
def test_a_trainer_goes_on_with_the_same_bits(scale, cut, tmp_path):
    columns, table = made()
    nodes = tg.NodeFeatures(table)
    whole = trainer_of(scale)
    whole.run(nodes.along(tg.open_stream(columns)))
    saved, ids = stopped_at(cut, tg.open_stream(columns), nodes, scale, tmp_path / "c")
    resumed = tg.ContinualTrainer.from_checkpoint(small_tgn(9, edge_x_dim=0, node_x_dim=2), saved)
    assert len(resumed.graph.node_x) == resumed.graph.num_nodes < 41, "of its events alone"
    events = concat(list(tg.open_stream(columns, ids=ids)))
    resumed.run(nodes.along([events[cut:]], resumed.graph, ids=ids))
    assert state_of(resumed) == state_of(whole)


def test_features_are_scaled_by_the_nodes_that_appeared_before_alone():
    columns, table = made()
    graph = tg.TemporalGraph(
        node_x=tg.tables.FeatureTable(2), feature_scale=tg.graph.FeatureScale("auto", freeze_at=25)
    )
    stream = tg.open_stream(columns)
    for events in tg.NodeFeatures(table).along(stream):
        graph.append(events)
    raw = tg.NodeFeatures(table).rows(stream.ids)
    expected, _ = tg.graph.FeatureScale("auto", freeze_at=25).scaled(raw)
    assert torch.equal(graph.node_x.read(0, len(raw)), expected)
    assert graph.node_scale.line("node features", "nodes").endswith("25 nodes (frozen)")


def test_a_row_that_is_other_than_it_was_is_refused_and_new_ones_are_not(tmp_path):
    columns, table = made()
    saved, ids = stopped_at(
        20, tg.open_stream(columns), tg.NodeFeatures(table), "log", tmp_path / "c"
    )
    graph = tg.ContinualTrainer.from_checkpoint(small_tgn(edge_x_dim=0, node_x_dim=2), saved).graph
    more = {"id": [*table["id"], "new"], "x": np.concatenate([table["x"], np.ones((1, 2))])}
    tg.NodeFeatures(more).along([], graph, ids=ids)
    name = ids.decode(torch.tensor([3]))[0]
    more["x"][more["id"].index(name)] += 1
    with pytest.raises(SourceMismatch, match=f"the row of '{name}' is other than it was"):
        tg.NodeFeatures(more).along([], graph, ids=ids)
    with pytest.raises(ValueError, match="width 1, the graph some of width 2"):
        tg.NodeFeatures({"id": ["a"], "x": [1.0]}).along([], graph, ids=ids)
